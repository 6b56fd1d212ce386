/*
 * What a layer has, offsets and logits, on a GPU: output and gradients, on a stream and in memory of one's
 * own.
 *
 *     cc -std=c99 cuda_from_offsets.c $(pkg-config --cflags --libs msdeform) -ldl -lm -o cuda_from_offsets
 *
 * Boxes, one for all levels, are the references, as in the decoder of RT-DETR. Offsets and logits are parts
 * of one projection and are read where they lie. It compares what the GPU computes with what a CPU plan does.
 * "driver.h" is this folder's: streams and memory without a CUDA toolkit.
 */

#include "driver.h"

#include <math.h>
#include <msdeform.h>
#include <string.h>

enum {
    BATCH = 2,
    HEADS = 8,
    CHANNELS = 32,
    QUERIES = 300,
    POINTS = 4,
    LEVELS = 2,
    PIXELS = 32 * 32 + 16 * 16
};
enum { SAMPLES = LEVELS * POINTS, WIDTH = HEADS * CHANNELS };
/* Of a query: its offsets, then its logits. */
enum { OFFSETS = HEADS * SAMPLES * 2, LOGITS = HEADS * SAMPLES, PROJECTED = OFFSETS + LOGITS };

static const int64_t level_sizes[] = {32, 32, 16, 16};
static float value[BATCH * PIXELS * WIDTH], boxes[BATCH * QUERIES * 4],
    projection[BATCH * QUERIES * PROJECTED];
static float grad_output[BATCH * QUERIES * WIDTH];

/* What a forward and a backward call write. */
typedef struct {
    float output[BATCH * QUERIES * WIDTH], grad_value[BATCH * PIXELS * WIDTH],
        grad_boxes[BATCH * QUERIES * 4];
    float grad_offsets[BATCH * QUERIES * OFFSETS], grad_logits[BATCH * QUERIES * LOGITS];
} results;
static results expected, found;

static char text[1024];
static msdeform_message message = {text, sizeof text, 0};

static void must(msdeform_status status) {
    if (status != MSDEFORM_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", msdeform_status_name(status), message.text);
        exit(1);
    }
}

static msdeform_problem* describe(void) {
    msdeform_offsets offsets;
    must(msdeform_offsets_init(&offsets, sizeof offsets));
    offsets.kind = MSDEFORM_REFERENCE_KIND_BOX;
    offsets.reference_of = MSDEFORM_REFERENCE_OF_QUERY;
    msdeform_problem_description description;
    must(msdeform_problem_description_init(&description, sizeof description));
    description.batch = BATCH;
    description.heads = HEADS;
    description.channels = CHANNELS;
    description.queries = QUERIES;
    description.points = POINTS;
    description.level_count = LEVELS;
    description.level_sizes = level_sizes;
    description.offsets = &offsets;
    msdeform_problem* problem = NULL;
    must(msdeform_problem_create(&description, &problem, &message));
    return problem;
}

static msdeform_input reads(const void* data, size_t bytes) {
    msdeform_input input = {0};
    input.data = data;
    input.bytes = bytes;
    return input;
}

static msdeform_output writes(void* data, size_t bytes) {
    msdeform_output output = {data, bytes};
    return output;
}

/* Inputs in either memory; the bytes of offsets and logits reach to the end of the projection. */
static msdeform_tensors tensors_in(const float* values, const float* references, const float* projected,
                                   const float* upstream, results* to) {
    msdeform_tensors tensors = {0};
    tensors.struct_size = sizeof tensors;
    tensors.value = reads(values, sizeof value);
    tensors.reference_points = reads(references, sizeof boxes);
    tensors.sampling_offsets = reads(projected, sizeof projection);
    tensors.attention_logits = reads(projected + OFFSETS, sizeof projection - OFFSETS * sizeof(float));
    tensors.grad_output = reads(upstream, sizeof grad_output);
    tensors.output = writes(to->output, sizeof to->output);
    tensors.grad_value = writes(to->grad_value, sizeof to->grad_value);
    tensors.grad_reference_points = writes(to->grad_boxes, sizeof to->grad_boxes);
    tensors.grad_sampling_offsets = writes(to->grad_offsets, sizeof to->grad_offsets);
    tensors.grad_attention_logits = writes(to->grad_logits, sizeof to->grad_logits);
    return tensors;
}

/* Elements from one image and from one query of the projection to the next. */
static const int64_t strides[] = {QUERIES * PROJECTED, PROJECTED};

/* What the processor computes: there strides are a matter of the call. */
static void compute_expected(const msdeform_problem* problem) {
    msdeform_cpu_plan* plan = NULL;
    msdeform_tensors tensors = tensors_in(value, boxes, projection, grad_output, &expected);
    tensors.sampling_offsets.strides = tensors.attention_logits.strides = strides;
    tensors.sampling_offsets.stride_count = tensors.attention_logits.stride_count = 2;
    must(msdeform_cpu_plan_create(problem, NULL, &plan, &message));
    must(msdeform_cpu_forward(plan, &tensors, &message));
    must(msdeform_cpu_backward(plan, &tensors, &message));
    msdeform_cpu_plan_destroy(plan);
}

/* On a GPU they belong to the plan. */
static msdeform_cuda_plan* make_plan(const msdeform_cuda_engine* engine, const msdeform_problem* problem,
                                     int32_t direction) {
    msdeform_cuda_plan_options options = {0};
    options.struct_size = sizeof options;
    options.direction = direction;
    options.offset_strides = strides;
    options.logit_strides = strides;
    options.workspace = MSDEFORM_CUDA_WORKSPACE_CALLER;
    msdeform_cuda_plan* plan = NULL;
    must(msdeform_cuda_plan_create(engine, problem, &options, &plan, &message));
    return plan;
}

/* Queues a call with a workspace that is the caller's. Nothing is copied or waited for by the launch. */
static void launch(const msdeform_cuda_plan* plan, void* stream, msdeform_tensors tensors) {
    msdeform_cuda_plan_info info = {0};
    info.struct_size = sizeof info;
    must(msdeform_cuda_plan_get_info(plan, &info, &message));
    if (info.workspace_bytes > 0) {
        unsigned long long workspace = 0;
        DRIVER(cuMemAlloc_v2, (unsigned long long*, size_t), (&workspace, info.workspace_bytes));
        tensors.workspace = writes((void*)(uintptr_t)workspace, info.workspace_bytes);
    }
    must(msdeform_cuda_launch(plan, stream, &tensors, &message));
    printf("%s, %lu bytes of workspace\n", info.variant, (unsigned long)info.workspace_bytes);
}

/* Relative L2; what is not a number is never within a bound. */
static int is_close(const char* name, const float* of_gpu, const float* of_cpu, size_t count) {
    double off = 0.0, norm = 0.0;
    for (size_t i = 0; i < count; ++i) {
        double difference = (double)of_gpu[i] - of_cpu[i];
        off += difference * difference;
        norm += (double)of_cpu[i] * of_cpu[i];
    }
    double error = sqrt(off / norm);
    printf("%s: off by %.1e from the processor's\n", name, error);
    return error < 1e-5;
}

#define CLOSE(name) is_close(#name, found.name, expected.name, sizeof found.name / sizeof *found.name)

static void fill(float* to, size_t count, double speed, double low, double high) {
    for (size_t i = 0; i < count; ++i)
        to[i] = (float)(low + (high - low) * (0.5 + 0.5 * sin(speed * (double)i)));
}

int main(void) {
    fill(value, sizeof value / sizeof *value, 0.1, -1.0, 1.0);
    fill(boxes, sizeof boxes / sizeof *boxes, 0.7, 0.1, 0.9);
    fill(projection, sizeof projection / sizeof *projection, 1.3, -2.0, 2.0);
    fill(grad_output, sizeof grad_output / sizeof *grad_output, 0.9, -1.0, 1.0);
    msdeform_problem* problem = describe();
    compute_expected(problem);

    msdeform_cuda_engine* engine = NULL;
    msdeform_status status = msdeform_cuda_engine_create(0, NULL, &engine, &message);
    if (status == MSDEFORM_STATUS_CUDA_UNAVAILABLE) {
        printf("no GPU here: %s\n", message.text);
        msdeform_problem_destroy(problem);
        return 0;
    }
    must(status);
    msdeform_cuda_plan* forward = make_plan(engine, problem, MSDEFORM_DIRECTION_FORWARD);
    msdeform_cuda_plan* backward = make_plan(engine, problem, MSDEFORM_DIRECTION_BACKWARD);

    void* stream = new_stream();
    memset(&found, 0xff, sizeof found);
    results* on_device = to_device(&found, sizeof found);
    msdeform_tensors tensors = tensors_in(to_device(value, sizeof value), to_device(boxes, sizeof boxes),
                                          to_device(projection, sizeof projection),
                                          to_device(grad_output, sizeof grad_output), on_device);
    launch(forward, stream, tensors);
    launch(backward, stream, tensors);
    wait_for(stream);
    from_device(&found, on_device, sizeof found);

    int is_right =
        CLOSE(output) & CLOSE(grad_value) & CLOSE(grad_boxes) & CLOSE(grad_offsets) & CLOSE(grad_logits);
    msdeform_cuda_plan_destroy(forward);
    msdeform_cuda_plan_destroy(backward);
    msdeform_cuda_engine_destroy(engine);
    msdeform_problem_destroy(problem);
    return is_right ? 0 : 1;
}
