// The runner: `runner KERNELS.so` loads the compiled kernels of one file, reads launches from standard
// input, runs their steps and writes the buffers they filled to standard output. The format is that of
// src/wire.rs; all numbers are little endian.
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

#include "scheduler.hpp"

namespace msda_emulator {
namespace {

constexpr uint64_t request_magic = 0x324c554d4541444dull;  // "MDAEMUL2"
// As for allocations of the CUDA driver.
constexpr size_t allocation_alignment = 256;

// A step of a launch.
struct Step {
    enum class Kind : uint32_t { launch = 0, zero = 1 } kind;
    // A launch of this kernel.
    uint32_t kernel;
    LaunchShape shape;
    // Zeroing of a part of a buffer.
    uint32_t buffer;
    uint64_t offset, bytes;
};

// The entry functions of the compiled files, counted through them.
using Kernels = std::vector<Kernel>;

template <typename... Arguments>
[[noreturn]] void refuse(const char* format, Arguments... arguments) {
    fail(Fault::protocol, Site::here(), format, arguments...);
}

void read_exactly(void* target, size_t bytes) {
    if (fread(target, 1, bytes, stdin) != bytes) refuse("%s", "the request ends early");
}

template <typename T>
T read_number() {
    T number;
    read_exactly(&number, sizeof number);
    return number;
}

Index3 read_index() {
    Index3 index;
    index.x = read_number<uint32_t>();
    index.y = read_number<uint32_t>();
    index.z = read_number<uint32_t>();
    return index;
}

// A device allocation of exactly the requested size, so that the first byte past it is an error.
class Buffer {
public:
    Buffer() {
        bytes_ = read_number<uint64_t>();
        const size_t offset = read_number<uint32_t>();
        written_ = read_number<uint32_t>() != 0;
        const size_t total = bytes_ + offset > 0 ? bytes_ + offset : 8;
        if (posix_memalign(&allocation_, allocation_alignment, total) != 0) {
            refuse("no memory for %zu bytes", total);
        }
        data_ = static_cast<unsigned char*>(allocation_) + offset;
        read_exactly(data_, bytes_);
        if (!written_) original_.assign(data_, data_ + bytes_);
        if (offset > 0) __asan_poison_memory_region(allocation_, offset);
        if (bytes_ + offset == 0) __asan_poison_memory_region(allocation_, total);
    }
    ~Buffer() {
        __asan_unpoison_memory_region(allocation_,
                                      static_cast<size_t>(data_ - static_cast<unsigned char*>(allocation_)) +
                                          (bytes_ > 0 ? bytes_ : 8));
        free(allocation_);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    unsigned char* data() const { return data_; }

    void zero(uint64_t offset, uint64_t bytes) const {
        if (!written_ || offset > bytes_ || bytes > bytes_ - offset) {
            refuse("zeroing %llu bytes at %llu of a buffer of %zu", static_cast<unsigned long long>(bytes),
                   static_cast<unsigned long long>(offset), bytes_);
        }
        memset(data_ + offset, 0, bytes);
    }

    void finish(size_t index) const {
        if (written_) {
            if (fwrite(data_, 1, bytes_, stdout) != bytes_) refuse("%s", "cannot write the answer");
        } else if (bytes_ > 0 && memcmp(original_.data(), data_, bytes_) != 0) {
            fail(Fault::misuse, Site::here(), "the kernel wrote into buffer %zu, an input", index);
        }
    }

private:
    size_t bytes_;
    bool written_;
    void* allocation_ = nullptr;
    unsigned char* data_ = nullptr;
    std::vector<unsigned char> original_;
};

void check_geometry(const LaunchShape& shape) {
    const uint64_t threads = uint64_t{shape.block.x} * shape.block.y * shape.block.z;
    const bool fits = threads >= 1 && threads <= 1024 && shape.block.z <= 64 && shape.grid.x >= 1 &&
                      shape.grid.x <= 0x7fffffffu && shape.grid.y >= 1 && shape.grid.y <= 65535 &&
                      shape.grid.z >= 1 && shape.grid.z <= 65535 && shape.shared_bytes <= 227 * 1024;
    if (!fits) {
        fail(Fault::misuse, Site::here(),
             "no GPU takes this launch: grid %u x %u x %u, block %u x %u x %u, %zu shared bytes",
             shape.grid.x, shape.grid.y, shape.grid.z, shape.block.x, shape.block.y, shape.block.z,
             shape.shared_bytes);
    }
}

void load_library(const char* path, Kernels& all) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) refuse("%s", dlerror());
    const auto* count = static_cast<const size_t*>(dlsym(library, "msda_kernel_count"));
    const auto* kernels = static_cast<const Kernel* const*>(dlsym(library, "msda_kernels"));
    if (count == nullptr || kernels == nullptr) refuse("%s is not a compiled kernel", path);
    all.insert(all.end(), *kernels, *kernels + *count);
}

Order read_order() {
    const auto order = read_number<uint32_t>();
    if (order > static_cast<uint32_t>(Order::shuffled)) refuse("there is no order %u", order);
    return static_cast<Order>(order);
}

Step read_step(const Kernels& kernels) {
    Step step{};
    const auto kind = read_number<uint32_t>();
    if (kind > static_cast<uint32_t>(Step::Kind::zero)) refuse("there is no step %u", kind);
    step.kind = static_cast<Step::Kind>(kind);
    if (step.kind == Step::Kind::zero) {
        step.buffer = read_number<uint32_t>();
        step.offset = read_number<uint64_t>();
        step.bytes = read_number<uint64_t>();
        return step;
    }
    step.kernel = read_number<uint32_t>();
    if (step.kernel >= kernels.size()) refuse("there is no kernel %u", step.kernel);
    step.shape.grid = read_index();
    step.shape.block = read_index();
    step.shape.shared_bytes = read_number<uint64_t>();
    return step;
}

void run_launch(const Kernels& kernels) {
    const Order order = read_order();
    const Order block_order = read_order();
    std::vector<Step> steps(read_number<uint32_t>());
    for (Step& step : steps) {
        step = read_step(kernels);
        step.shape.order = order;
        step.shape.block_order = block_order;
    }

    // Like the driver, passes a kernel as many of the given bytes as it declares.
    const auto params_bytes = read_number<uint64_t>();
    for (const Step& step : steps) {
        const size_t declared = kernels[step.kernel].params_bytes;
        if (step.kind == Step::Kind::launch && params_bytes < declared) {
            refuse("%llu bytes of parameters given, the kernel takes %zu",
                   static_cast<unsigned long long>(params_bytes), declared);
        }
    }
    // Tensor maps inside need 64.
    void* params = aligned_alloc(64, (params_bytes + 63) / 64 * 64);
    if (params == nullptr) refuse("%s", "no memory for the parameters");
    read_exactly(params, params_bytes);

    std::vector<std::unique_ptr<Buffer>> buffers(read_number<uint32_t>());
    for (auto& buffer : buffers) buffer = std::make_unique<Buffer>();
    for (auto pointers = read_number<uint32_t>(); pointers > 0; --pointers) {
        const auto at = read_number<uint64_t>();
        const auto buffer = read_number<uint32_t>();
        const auto offset = read_number<uint64_t>();
        if (at + sizeof(void*) > params_bytes || buffer >= buffers.size()) {
            refuse("%s", "a pointer outside of the parameters");
        }
        const void* address = buffers[buffer]->data() + offset;
        memcpy(static_cast<unsigned char*>(params) + at, &address, sizeof address);
    }

    for (const Step& step : steps) {
        if (step.kind == Step::Kind::zero) {
            if (step.buffer >= buffers.size()) refuse("there is no buffer %u", step.buffer);
            buffers[step.buffer]->zero(step.offset, step.bytes);
            continue;
        }
        check_geometry(step.shape);
        run_grid(step.shape, kernels[step.kernel].run_thread, params);
    }
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i]->finish(i);
    free(params);
}

void name_position() {
    char text[128];
    describe_position(text, sizeof text);
    fprintf(stderr, "msda-emulator:%s: stopped by the sanitizer\n", text);
}

void on_alarm(int) {
    char position[128], text[192];
    describe_position(position, sizeof position);
    const int length = snprintf(text, sizeof text, "msda-emulator:%s: out of time\n", position);
    if (length > 0 && write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) {
        // Writing failed too, so only the exit code reports it.
    }
    _exit(static_cast<int>(Fault::timeout));
}

}  // namespace
}  // namespace msda_emulator

int main(int count, char** arguments) {
    using namespace msda_emulator;
    if (count < 2) refuse("%s", "usage: runner KERNELS.so... < REQUEST > ANSWER");
    Kernels kernels;
    for (int i = 1; i < count; ++i) load_library(arguments[i], kernels);
    __sanitizer_set_death_callback(name_position);
    if (read_number<uint64_t>() != request_magic) refuse("%s", "not a request");
    const auto limit_ms = read_number<uint32_t>();
    // Of CPU time, so that a busy machine does not stop a kernel.
    signal(SIGPROF, on_alarm);
    itimerval timer{};
    timer.it_value.tv_sec = limit_ms / 1000;
    timer.it_value.tv_usec = static_cast<suseconds_t>(limit_ms % 1000) * 1000;
    setitimer(ITIMER_PROF, &timer, nullptr);
    for (auto launches = read_number<uint32_t>(); launches > 0; --launches) run_launch(kernels);
    return fflush(stdout) == 0 ? 0 : static_cast<int>(Fault::protocol);
}
