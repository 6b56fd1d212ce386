/*
 * The operator on a GPU, on a stream and in memory of one's own.
 *
 *     cc -std=c99 cuda.c $(pkg-config --cflags --libs msdeform) -ldl -lm -o cuda
 *
 * It compares what the GPU computes with what a CPU plan does. "driver.h" is this folder's: streams and
 * memory without a CUDA toolkit.
 */

#include "driver.h"

#include <math.h>
#include <msdeform.h>
#include <string.h>

enum { HEADS = 8, CHANNELS = 32, QUERIES = 300, POINTS = 4, LEVELS = 2, PIXELS = 32 * 32 + 16 * 16 };
enum { SAMPLES = LEVELS * POINTS };

static const int64_t level_sizes[] = {32, 32, 16, 16};
static float value[PIXELS * HEADS * CHANNELS], locations[QUERIES * HEADS * SAMPLES * 2];
static float weights[QUERIES * HEADS * SAMPLES];
static float expected[QUERIES * HEADS * CHANNELS], output[QUERIES * HEADS * CHANNELS];

static char text[1024];
static msdeform_message message = {text, sizeof text, 0};

static void must(msdeform_status status) {
    if (status != MSDEFORM_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", msdeform_status_name(status), message.text);
        exit(1);
    }
}

static msdeform_input reads(const void* data, size_t bytes) {
    msdeform_input input = {0};
    input.data = data;
    input.bytes = bytes;
    return input;
}

/* What the processor computes of the same inputs. */
static void compute_expected(const msdeform_problem* problem) {
    msdeform_cpu_plan* plan = NULL;
    msdeform_tensors tensors = {0};
    tensors.struct_size = sizeof tensors;
    tensors.value = reads(value, sizeof value);
    tensors.sampling_locations = reads(locations, sizeof locations);
    tensors.attention_weights = reads(weights, sizeof weights);
    tensors.output.data = expected;
    tensors.output.bytes = sizeof expected;
    must(msdeform_cpu_plan_create(problem, NULL, &plan, &message));
    must(msdeform_cpu_forward(plan, &tensors, &message));
    msdeform_cpu_plan_destroy(plan);
}

/* Queues the operator on a stream. Nothing is copied, allocated or waited for by the launch. */
static void launch(const msdeform_cuda_plan* plan, void* stream, void* on_device) {
    msdeform_tensors tensors = {0};
    tensors.struct_size = sizeof tensors;
    tensors.value = reads(to_device(value, sizeof value), sizeof value);
    tensors.sampling_locations = reads(to_device(locations, sizeof locations), sizeof locations);
    tensors.attention_weights = reads(to_device(weights, sizeof weights), sizeof weights);
    tensors.output.data = on_device;
    tensors.output.bytes = sizeof output;
    must(msdeform_cuda_launch(plan, stream, &tensors, &message));
}

int main(void) {
    for (size_t i = 0; i < sizeof value / sizeof *value; ++i) value[i] = (float)sin(0.1 * (double)i);
    for (size_t i = 0; i < sizeof locations / sizeof *locations; ++i) {
        locations[i] = (float)(0.5 + 0.5 * sin(0.7 * (double)i));
    }
    for (size_t i = 0; i < sizeof weights / sizeof *weights; ++i) weights[i] = 1.0f / SAMPLES;

    msdeform_problem_description description;
    must(msdeform_problem_description_init(&description, sizeof description));
    description.heads = HEADS;
    description.channels = CHANNELS;
    description.queries = QUERIES;
    description.points = POINTS;
    description.level_count = LEVELS;
    description.level_sizes = level_sizes;
    msdeform_problem* problem = NULL;
    must(msdeform_problem_create(&description, &problem, &message));
    compute_expected(problem);

    msdeform_cuda_engine* engine = NULL;
    msdeform_status status = msdeform_cuda_engine_create(0, NULL, &engine, &message);
    if (status == MSDEFORM_STATUS_CUDA_UNAVAILABLE) {
        printf("no GPU here: %s\n", message.text);
        msdeform_problem_destroy(problem);
        return 0;
    }
    must(status);
    msdeform_cuda_plan* plan = NULL;
    must(msdeform_cuda_plan_create(engine, problem, NULL, &plan, &message));
    msdeform_cuda_plan_info info = {0};
    info.struct_size = sizeof info;
    must(msdeform_cuda_plan_get_info(plan, &info, &message));

    void* stream = new_stream();
    memset(output, 0xff, sizeof output);
    void* on_device = to_device(output, sizeof output);
    launch(plan, stream, on_device);
    wait_for(stream);
    from_device(output, on_device, sizeof output);

    double worst = 0.0;
    for (size_t i = 0; i < sizeof output / sizeof *output; ++i) {
        double error = fabs((double)output[i] - expected[i]);
        worst = error <= worst ? worst : error;
    }
    printf("%s: off by %.1e at most from the processor's\n", info.variant, worst);
    msdeform_cuda_plan_destroy(plan);
    msdeform_cuda_engine_destroy(engine);
    msdeform_problem_destroy(problem);
    return worst < 1e-5 ? 0 : 1;
}
