/*
 * Multi-scale deformable attention from C: forward, backward, and what an error looks like.
 *
 *     cc -std=c99 attention.c $(pkg-config --cflags --libs msdeform) -lm -o attention
 *
 * It checks what it gets against loops in double precision, which are all there is to the operator.
 */

#include <math.h>
#include <msdeform.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 2, CHANNELS = 3, QUERIES = 4, LEVELS = 2, POINTS = 2 };
enum { SAMPLES = LEVELS * POINTS, PIXELS = 6 * 8 + 3 * 4 };

static const int64_t level_sizes[LEVELS][2] = {{6, 8}, {3, 4}}; /* height, width */

/* [batch, pixels, heads, channels] and so on: the last index runs fastest. */
static float value[BATCH * PIXELS * HEADS * CHANNELS];
static float locations[BATCH * QUERIES * HEADS * SAMPLES * 2];
static float weights[BATCH * QUERIES * HEADS * SAMPLES];
static float output[BATCH * QUERIES * HEADS * CHANNELS];
static float grad_output[BATCH * QUERIES * HEADS * CHANNELS];
static float grad_value[BATCH * PIXELS * HEADS * CHANNELS];
static float grad_locations[BATCH * QUERIES * HEADS * SAMPLES * 2];
static float grad_weights[BATCH * QUERIES * HEADS * SAMPLES];

static char text[512];
static msdeform_message message = {text, sizeof text, 0};

static void must(msdeform_status status) {
    if (status != MSDEFORM_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", msdeform_status_name(status), message.text);
        exit(1);
    }
}

static void expect(msdeform_status found, msdeform_status expected, const char* part_of_text) {
    if (found != expected || strstr(message.text, part_of_text) == NULL) {
        fprintf(stderr, "%s: %s\n", msdeform_status_name(found), message.text);
        exit(1);
    }
}

static void fill(float* numbers, size_t count, double from, double to) {
    static uint32_t state = 1;
    for (size_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (float)(from + (to - from) * (state >> 8) / 16777216.0);
    }
}

/* One channel of one head at (x, y) of a level: interpolated, zero outside. */
static double sample(int n, int m, int c, int level, double x, double y) {
    int height = (int)level_sizes[level][0], width = (int)level_sizes[level][1];
    int start = level == 0 ? 0 : 6 * 8;
    double column = x * width - 0.5, row = y * height - 0.5, sum = 0.0;
    for (int corner = 0; corner < 4; ++corner) {
        int i = (int)floor(row) + corner / 2, j = (int)floor(column) + corner % 2;
        if (i >= 0 && i < height && j >= 0 && j < width) {
            int pixel = start + i * width + j;
            double part = (1.0 - fabs(row - i)) * (1.0 - fabs(column - j));
            sum += part * value[((n * PIXELS + pixel) * HEADS + m) * CHANNELS + c];
        }
    }
    return sum;
}

/* One element of the output. */
static double attend(int n, int q, int m, int c) {
    double sum = 0.0;
    for (int s = 0; s < SAMPLES; ++s) {
        int at = ((n * QUERIES + q) * HEADS + m) * SAMPLES + s;
        sum += weights[at] * sample(n, m, c, s / POINTS, locations[2 * at], locations[2 * at + 1]);
    }
    return sum;
}

/* What the gradients are gradients of. */
static double loss(void) {
    double sum = 0.0;
    for (int i = 0; i < BATCH * QUERIES * HEADS * CHANNELS; ++i) {
        int c = i % CHANNELS, m = i / CHANNELS % HEADS, q = i / CHANNELS / HEADS % QUERIES;
        sum += grad_output[i] * attend(i / CHANNELS / HEADS / QUERIES, q, m, c);
    }
    return sum;
}

/* The largest difference between a gradient and the slope of the loss. */
static double slope_error(float* input, const float* gradient, size_t count) {
    double worst = 0.0;
    for (size_t i = 0; i < count; ++i) {
        float kept = input[i];
        input[i] = kept + 1.0f / 4096;
        double above = loss();
        float high = input[i];
        input[i] = kept - 1.0f / 4096;
        double slope = (above - loss()) / ((double)high - input[i]);
        input[i] = kept;
        double error = fabs(slope - gradient[i]);
        worst = error <= worst ? worst : error; /* NaN is the worst of all */
    }
    return worst;
}

static msdeform_problem* describe(void) {
    msdeform_problem_description description;
    must(msdeform_problem_description_init(&description, sizeof description));
    description.batch = BATCH;
    description.heads = HEADS;
    description.channels = CHANNELS;
    description.queries = QUERIES;
    description.points = POINTS;
    description.level_count = LEVELS;
    description.level_sizes = &level_sizes[0][0];

    msdeform_problem* problem = NULL;
    must(msdeform_problem_create(&description, &problem, &message));
    return problem;
}

int main(void) {
    if (msdeform_abi_version() != MSDEFORM_ABI_VERSION) {
        fprintf(stderr, "compiled for another libmsdeform than %s\n", msdeform_version());
        return 1;
    }
    fill(value, sizeof value / sizeof *value, -1.0, 1.0);
    fill(locations, sizeof locations / sizeof *locations, -0.1, 1.1);
    fill(weights, sizeof weights / sizeof *weights, 0.0, 1.0);
    fill(grad_output, sizeof grad_output / sizeof *grad_output, -1.0, 1.0);
    memset(output, 0xff, sizeof output); /* NaN: all of it is written */
    memset(grad_value, 0xff, sizeof grad_value);

    msdeform_problem* problem = describe();
    msdeform_cpu_plan* plan = NULL;
    must(msdeform_cpu_plan_create(problem, NULL, &plan, &message));

    msdeform_tensors tensors = {0};
    tensors.struct_size = sizeof tensors;
    tensors.value.data = value;
    tensors.value.bytes = sizeof value;
    tensors.sampling_locations.data = locations;
    tensors.sampling_locations.bytes = sizeof locations;
    tensors.attention_weights.data = weights;
    tensors.attention_weights.bytes = sizeof weights;
    tensors.output.data = output;
    tensors.output.bytes = sizeof output;
    must(msdeform_cpu_forward(plan, &tensors, &message));

    double worst = 0.0;
    for (int i = 0; i < BATCH * QUERIES * HEADS * CHANNELS; ++i) {
        int c = i % CHANNELS, m = i / CHANNELS % HEADS, q = i / CHANNELS / HEADS % QUERIES;
        double error = fabs(output[i] - attend(i / CHANNELS / HEADS / QUERIES, q, m, c));
        worst = error <= worst ? worst : error;
    }
    printf("output: off by %.1e at most\n", worst);
    int failed = !(worst < 1e-5);

    /* Any subset of the gradients: those without a place are not computed. */
    tensors.grad_output.data = grad_output;
    tensors.grad_output.bytes = sizeof grad_output;
    tensors.grad_value.data = grad_value;
    tensors.grad_value.bytes = sizeof grad_value;
    tensors.grad_sampling_locations.data = grad_locations;
    tensors.grad_sampling_locations.bytes = sizeof grad_locations;
    tensors.grad_attention_weights.data = grad_weights;
    tensors.grad_attention_weights.bytes = sizeof grad_weights;
    must(msdeform_cpu_backward(plan, &tensors, &message));

    double of_value = slope_error(value, grad_value, sizeof value / sizeof *value);
    double of_locations = slope_error(locations, grad_locations, sizeof locations / sizeof *locations);
    double of_weights = slope_error(weights, grad_weights, sizeof weights / sizeof *weights);
    printf("gradients: off by %.1e, %.1e, %.1e at most\n", of_value, of_locations, of_weights);
    failed |= !(of_value < 1e-4 && of_locations < 1e-3 && of_weights < 1e-4);

    /* What is wrong is a code and a text, and nothing was computed. */
    tensors.sampling_locations.bytes -= sizeof(float);
    msdeform_status status = msdeform_cpu_forward(plan, &tensors, &message);
    printf("%s: %s\n", msdeform_status_name(status), message.text);
    expect(status, MSDEFORM_STATUS_BAD_LENGTH, "sampling_locations");
    tensors.sampling_locations.bytes += sizeof(float);
    tensors.value.data = NULL;
    expect(msdeform_cpu_forward(plan, &tensors, &message), MSDEFORM_STATUS_NULL_POINTER, "value");
    expect(msdeform_cpu_forward(NULL, &tensors, &message), MSDEFORM_STATUS_NULL_POINTER, "plan");
    expect(msdeform_cpu_forward(plan, NULL, &message), MSDEFORM_STATUS_NULL_POINTER, "msdeform_tensors");

    msdeform_cpu_plan_destroy(plan);
    msdeform_problem_destroy(problem);
    return failed;
}
