// Compiled once per kernel specialisation: the kernels of one file, exactly as the device compiler gets
// them, and the table through which the runtime starts a thread of each.
//   -DMSDA_EMULATED_SOURCE="\"file.cu\""   the file
//   -DMSDA_EMULATED_ENTRIES=first,second   its entry functions
#include MSDA_EMULATED_SOURCE

#include <utility>

namespace {

// The places of the parameters of a kernel, and their end. They lie one after the other, as in a struct.
template <typename... Params>
struct Layout {
    size_t offsets[sizeof...(Params)] = {};
    size_t bytes = 0;

    constexpr Layout() {
        size_t at = 0;
        ((bytes = (bytes + alignof(Params) - 1) / alignof(Params) * alignof(Params), offsets[at++] = bytes,
          bytes += sizeof(Params)),
         ...);
    }
};

template <typename... Params>
constexpr size_t params_bytes(void (*)(Params...)) {
    return Layout<Params...>().bytes;
}

template <typename... Params, size_t... PLACES>
void call(void (*kernel)(Params...), const unsigned char* params, std::index_sequence<PLACES...>) {
    constexpr Layout<Params...> layout;
    kernel(*reinterpret_cast<const Params*>(params + layout.offsets[PLACES])...);
}

template <typename... Params>
void call(void (*kernel)(Params...), const void* params) {
    call(kernel, static_cast<const unsigned char*>(params), std::index_sequence_for<Params...>());
}

template <auto KERNEL>
void run_thread(const void* params) {
    call(KERNEL, params);
}

template <auto... KERNELS>
struct Table {
    static constexpr size_t count = sizeof...(KERNELS);
    static constexpr ::msda_emulator::Kernel kernels[] = {{params_bytes(KERNELS), run_thread<KERNELS>}...};
};
using Entries = Table<MSDA_EMULATED_ENTRIES>;

}  // namespace

extern "C" const size_t msda_kernel_count;
const size_t msda_kernel_count = Entries::count;
extern "C" const ::msda_emulator::Kernel* const msda_kernels;
const ::msda_emulator::Kernel* const msda_kernels = Entries::kernels;
