// Compiled once per kernel specialisation: the kernels of one file, exactly as the device compiler gets
// them, and the table through which the runtime starts a thread of each.
//   -DMSDA_EMULATED_SOURCE="\"file.cu\""   the file
//   -DMSDA_EMULATED_ENTRIES=first,second   its entry functions
#include MSDA_EMULATED_SOURCE

namespace {

template <typename Params>
constexpr size_t params_bytes(void (*)(Params)) {
    return sizeof(Params);
}

template <typename Params>
void call(void (*kernel)(Params), const void* params) {
    kernel(*static_cast<const Params*>(params));
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
