// Runs what export.py has written, in a process without Python.
//
// decoder FOLDER LIBRARY
//
// LIBRARY is what `python -c "import msdeform.aoti; print(msdeform.aoti.library_path())"` prints.

#include <dlfcn.h>

#include <fstream>
#include <iostream>
#include <string>

#include <ATen/core/Tensor.h>
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
    return difference < 1e-5;  // Not true of NaN.
}

int main(int count, char** arguments) {
    if (count != 3) {
        std::cerr << "usage: decoder FOLDER LIBRARY\n";
        return 2;
    }
    const std::string folder = std::string(arguments[1]) + "/";
    if (!register_operators(arguments[2])) {
        return 1;
    }
    const int64_t queries = 321;
    const std::vector<at::Tensor> inputs = {
        read(folder + "query.bin", {1, queries, 64}),
        read(folder + "reference.bin", {1, queries, 2, 2}),
        read(folder + "pixels.bin", {1, 750, 64}),
        read(folder + "locations.bin", {1, queries, 4, 2, 4, 2}),
        read(folder + "weights.bin", {1, queries, 4, 2, 4}),
        read(folder + "shapes.bin", {2, 2}, at::kLong),
    };
    torch::inductor::AOTIModelPackageLoader model(folder + "decoder.pt2");
    const std::vector<at::Tensor> outputs = model.run(inputs);
    const bool right = same("layer", outputs.at(0), read(folder + "attended.bin", {1, queries, 64})) &&
                       same("operator", outputs.at(1), read(folder + "sampled.bin", {1, queries, 64}));

    // What a kernel refuses is an exception like any other of PyTorch's: here a level that is not there.
    try {
        std::vector<at::Tensor> wrong = inputs;
        wrong.back() = wrong.back().mul(2);
        model.run(wrong);
        std::cout << "nothing was refused\n";
        return 1;
    } catch (const std::exception& error) {
        const std::string text = error.what();
        std::cout << "refused: " << text.substr(0, text.find('\n')) << '\n';
    }
    std::cout << (has_python() ? "with" : "without") << " Python\n";
    return right && !has_python() ? 0 : 1;
}
