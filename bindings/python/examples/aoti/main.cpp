// Runs what export.py has written, in a process without Python.
//
// decoder FOLDER LIBRARY [cpu|cuda]
//
// LIBRARY is what `python -c "import msdeform.aoti; print(msdeform.aoti.library_path())"` prints.

#include <dlfcn.h>

#include <fstream>
#include <iostream>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_file.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

// Gives the operators to the libtorch of this process. False, and why, if that does not work.
static bool register_operators(const char* library) {
    void* loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (loaded == nullptr) {
        std::cerr << dlerror() << '\n';
        return false;
    }
    auto* registration = reinterpret_cast<const char* (*)()>(dlsym(loaded, "msdeform_torch_register"));
    const char* refusal = registration == nullptr ? "it is another library" : registration();
    if (refusal != nullptr) {
        std::cerr << library << ": " << refusal << '\n';
    }
    return refusal == nullptr;
}

// A tensor that export.py has written: its numbers and nothing else.
static at::Tensor read(const std::string& path, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
    int64_t count = 1;
    for (int64_t size : shape) {
        count *= size;
    }
    return at::from_file(path, /*shared=*/false, count, at::TensorOptions().dtype(type)).view(shape);
}

// The operator itself, as any other of PyTorch's: height, width, start and points of each level.
static at::Tensor attend(const std::vector<at::Tensor>& inputs, at::IntArrayRef levels) {
    using Signature =
        at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymIntArrayRef, bool);
    static const auto called =
        c10::Dispatcher::singleton().findSchemaOrThrow("msdeform::ms_deform_attn", "").typed<Signature>();
    const at::Tensor value = inputs.at(2).unflatten(2, {4, 16});
    return called.call(value, inputs.at(3), inputs.at(4), c10::fromIntArrayRefSlow(levels), false);
}

// What a kernel refuses is an exception like any other of PyTorch's. False if nothing was refused.
template <typename Call>
static bool is_refused(Call call) {
    try {
        call();
        std::cout << "nothing was refused\n";
        return false;
    } catch (const std::exception& error) {
        const std::string text = error.what();
        std::cout << "refused: " << text.substr(0, text.find('\n')) << '\n';
        return true;
    }
}

// Whether this process has mapped the interpreter.
static bool has_python() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find("libpython") != std::string::npos ||
            line.find("libtorch_python") != std::string::npos) {
            return true;
        }
    }
    return false;
}

static bool same(const char* name, const at::Tensor& found, const at::Tensor& expected) {
    const double difference = found.sub(expected).abs().max().item<double>();
    std::cout << name << ": largest difference " << difference << '\n';
    // Products of a GPU are summed in another order. Not true of NaN.
    return difference < (found.is_cpu() ? 1e-5 : 1e-4);
}

int main(int count, char** arguments) {
    if (count != 3 && count != 4) {
        std::cerr << "usage: decoder FOLDER LIBRARY [cpu|cuda]\n";
        return 2;
    }
    const std::string folder = std::string(arguments[1]) + "/";
    const at::Device device(count == 4 ? arguments[3] : "cpu");
    if (!register_operators(arguments[2])) {
        return 1;
    }
    const int64_t queries = 321;
    std::vector<at::Tensor> inputs = {
        read(folder + "query.bin", {1, queries, 64}),
        read(folder + "reference.bin", {1, queries, 2, 2}),
        read(folder + "pixels.bin", {1, 750, 64}),
        read(folder + "locations.bin", {1, queries, 4, 2, 4, 2}),
        read(folder + "weights.bin", {1, queries, 4, 2, 4}),
        read(folder + "shapes.bin", {2, 2}, at::kLong),
    };
    for (at::Tensor& input : inputs) {
        input = input.to(device);
    }
    torch::inductor::AOTIModelPackageLoader model(folder + "decoder.pt2");
    const std::vector<at::Tensor> outputs = model.run(inputs);
    const at::Tensor attended = read(folder + "attended.bin", {1, queries, 64}).to(device);
    const at::Tensor sampled = read(folder + "sampled.bin", {1, queries, 64}).to(device);
    bool right = same("layer", outputs.at(0), attended) && same("operator", outputs.at(1), sampled);

    // Without a package: two levels of 4 points.
    const std::vector<int64_t> levels = {20, 30, 0, 4, 10, 15, 600, 4};
    right = same("called", attend(inputs, levels), sampled) && right;

    // Levels that are none, and a level that is not there.
    right = is_refused([&] { attend(inputs, at::IntArrayRef(levels).slice(1)); }) && right;
    if (device.is_cpu()) {
        std::vector<at::Tensor> wrong = inputs;
        wrong.back() = wrong.back().mul(2);
        right = is_refused([&] { model.run(wrong); }) && right;
    }
    std::cout << (has_python() ? "with" : "without") << " Python\n";
    return right && !has_python() ? 0 : 1;
}
