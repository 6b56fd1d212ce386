// From C++: the operator as a decoder layer has it. Samples follow from boxes, offsets and logits, and the
// last two are parts of one projection, which is read where it is.
//
//     c++ -std=c++17 from_offsets.cpp $(pkg-config --cflags --libs msdeform) -o from_offsets
//
// It checks what it gets against the same formula in double precision.

#include <msdeform.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// Handles that end by themselves, and errors as exceptions: all that C++ needs.
struct Ends {
    void operator()(msdeform_problem* problem) const { msdeform_problem_destroy(problem); }
    void operator()(msdeform_workers* workers) const { msdeform_workers_destroy(workers); }
    void operator()(msdeform_cpu_plan* plan) const { msdeform_cpu_plan_destroy(plan); }
};
template <class T>
using Handle = std::unique_ptr<T, Ends>;

template <class Function, class... Arguments>
void call(Function function, Arguments... arguments) {
    char text[512];
    msdeform_message message{text, sizeof text, 0};
    msdeform_status status = function(arguments..., &message);
    if (status != MSDEFORM_STATUS_OK) {
        throw std::runtime_error(std::string(msdeform_status_name(status)) + ": " + text);
    }
}

template <class T, class Create, class... Arguments>
Handle<T> create(Create function, Arguments... arguments) {
    T* made = nullptr;
    call(function, arguments..., &made);
    return Handle<T>(made);
}

constexpr int BATCH = 2, HEADS = 2, CHANNELS = 4, QUERIES = 3, POINTS = 3;
constexpr int HEIGHT = 5, WIDTH = 7, PIXELS = HEIGHT * WIDTH;
constexpr int OFFSETS = HEADS * POINTS * 2, LOGITS = HEADS * POINTS;
// What a linear layer gives for a query: its offsets, then its logits.
constexpr int PROJECTED = OFFSETS + LOGITS;

std::vector<float> random_numbers(std::size_t count, double from, double to) {
    static std::uint32_t state = 1;
    std::vector<float> numbers(count);
    for (float& number : numbers) {
        state = state * 1664525u + 1013904223u;
        number = static_cast<float>(from + (to - from) * (state >> 8) / 16777216.0);
    }
    return numbers;
}

struct Inputs {
    std::vector<float> value = random_numbers(BATCH * PIXELS * HEADS * CHANNELS, -1, 1);
    std::vector<float> boxes = random_numbers(BATCH * QUERIES * 4, 0.2, 0.8);
    std::vector<float> projection = random_numbers(BATCH * QUERIES * PROJECTED, -1, 1);
    std::vector<float> grad_output = random_numbers(BATCH * QUERIES * HEADS * CHANNELS, -1, 1);
};

double pixel(const Inputs& in, int n, int m, int c, double x, double y) {
    double column = x * WIDTH - 0.5, row = y * HEIGHT - 0.5, sum = 0;
    for (int corner = 0; corner < 4; ++corner) {
        int i = static_cast<int>(std::floor(row)) + corner / 2;
        int j = static_cast<int>(std::floor(column)) + corner % 2;
        if (i < 0 || i >= HEIGHT || j < 0 || j >= WIDTH) continue;
        double part = (1 - std::fabs(row - i)) * (1 - std::fabs(column - j));
        sum += part * in.value[((n * PIXELS + i * WIDTH + j) * HEADS + m) * CHANNELS + c];
    }
    return sum;
}

double attend(const Inputs& in, int nq, int m, int c) {
    const float* box = &in.boxes[nq * 4];
    const float* offsets = &in.projection[nq * PROJECTED + m * POINTS * 2];
    const float* logits = &in.projection[nq * PROJECTED + OFFSETS + m * POINTS];
    double sum = 0, total = 0;
    for (int p = 0; p < POINTS; ++p) {
        double x = box[0] + offsets[2 * p] * 0.5 / POINTS * box[2];
        double y = box[1] + offsets[2 * p + 1] * 0.5 / POINTS * box[3];
        double weight = std::exp(static_cast<double>(logits[p]));
        total += weight;
        sum += weight * pixel(in, nq / QUERIES, m, c, x, y);
    }
    return sum / total;
}

double loss(const Inputs& in) {
    double sum = 0;
    for (int i = 0; i < BATCH * QUERIES * HEADS * CHANNELS; ++i) {
        sum += in.grad_output[i] * attend(in, i / CHANNELS / HEADS, i / CHANNELS % HEADS, i % CHANNELS);
    }
    return sum;
}

// The largest difference between a gradient and the slope of the loss. `at` selects the input.
template <class At>
double slope_error(Inputs& in, std::vector<float>& input, const std::vector<float>& gradient, At at) {
    double worst = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        float& number = input[at(i)];
        float kept = number, high = kept + 1.0f / 4096, low = kept - 1.0f / 4096;
        number = high;
        double above = loss(in);
        number = low;
        double slope = (above - loss(in)) / (static_cast<double>(high) - low);
        number = kept;
        double error = std::fabs(slope - gradient[i]);
        worst = error <= worst ? worst : error;  // NaN is the worst of all
    }
    return worst;
}

Handle<msdeform_problem> describe() {
    msdeform_offsets offsets;
    msdeform_offsets_init(&offsets, sizeof offsets);
    offsets.kind = MSDEFORM_REFERENCE_KIND_BOX;
    offsets.reference_of = MSDEFORM_REFERENCE_OF_QUERY;

    const std::int64_t levels[] = {HEIGHT, WIDTH};
    msdeform_problem_description description;
    msdeform_problem_description_init(&description, sizeof description);
    description.batch = BATCH;
    description.heads = HEADS;
    description.channels = CHANNELS;
    description.queries = QUERIES;
    description.points = POINTS;
    description.level_count = 1;
    description.level_sizes = levels;
    description.offsets = &offsets;
    return create<msdeform_problem>(msdeform_problem_create, &description);
}

msdeform_input reads(const std::vector<float>& from) {
    return {from.data(), from.size() * sizeof(float), nullptr, 0};
}

msdeform_output writes(std::vector<float>& to) { return {to.data(), to.size() * sizeof(float)}; }

int run() {
    Inputs in;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> output(in.grad_output.size(), nan), grad_value(in.value.size(), nan);
    std::vector<float> grad_boxes(in.boxes.size(), nan);
    std::vector<float> grad_offsets(BATCH * QUERIES * OFFSETS, nan);
    std::vector<float> grad_logits(BATCH * QUERIES * LOGITS, nan);

    // Two threads, which other plans may use as well.
    auto problem = describe();
    auto workers = create<msdeform_workers>(msdeform_workers_create, std::int64_t{2});
    msdeform_cpu_options options{};
    options.struct_size = sizeof options;
    options.workers = workers.get();
    auto plan = create<msdeform_cpu_plan>(msdeform_cpu_plan_create, problem.get(), &options);

    // Offsets and logits are parts of the projection: so far it is from one image and one query to the next.
    const std::int64_t strides[] = {QUERIES * PROJECTED, PROJECTED};
    msdeform_tensors tensors{};
    tensors.struct_size = sizeof tensors;
    tensors.value = reads(in.value);
    tensors.reference_points = reads(in.boxes);
    tensors.sampling_offsets = {in.projection.data(), in.projection.size() * sizeof(float), strides, 2};
    tensors.attention_logits = {in.projection.data() + OFFSETS,
                                (in.projection.size() - OFFSETS) * sizeof(float), strides, 2};
    tensors.output = writes(output);
    call(msdeform_cpu_forward, plan.get(), &tensors);

    tensors.grad_output = reads(in.grad_output);
    tensors.grad_value = writes(grad_value);
    tensors.grad_reference_points = writes(grad_boxes);
    tensors.grad_sampling_offsets = writes(grad_offsets);
    tensors.grad_attention_logits = writes(grad_logits);
    call(msdeform_cpu_backward, plan.get(), &tensors);

    double off = 0;
    for (std::size_t i = 0; i < output.size(); ++i) {
        int at = static_cast<int>(i);
        double expected = attend(in, at / CHANNELS / HEADS, at / CHANNELS % HEADS, at % CHANNELS);
        double error = std::fabs(output[i] - expected);
        off = error <= off ? off : error;
    }
    auto same = [](std::size_t i) { return i; };
    auto of_offsets = [](std::size_t i) { return i / OFFSETS * PROJECTED + i % OFFSETS; };
    auto of_logits = [](std::size_t i) { return i / LOGITS * PROJECTED + OFFSETS + i % LOGITS; };
    double errors[] = {
        slope_error(in, in.value, grad_value, same),
        slope_error(in, in.boxes, grad_boxes, same),
        slope_error(in, in.projection, grad_offsets, of_offsets),
        slope_error(in, in.projection, grad_logits, of_logits),
    };
    std::printf("output: off by %.1e at most\n", off);
    bool good = off < 1e-5;
    for (double error : errors) {
        std::printf("gradient: off by %.1e at most\n", error);
        good = good && error < 2e-3;
    }

    try {
        tensors.sampling_locations = reads(in.value);
        call(msdeform_cpu_forward, plan.get(), &tensors);
        good = false;
    } catch (const std::runtime_error& error) {
        std::printf("%s\n", error.what());
    }
    return good ? 0 : 1;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
