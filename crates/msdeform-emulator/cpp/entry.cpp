// Compiled once per kernel specialisation: the kernel itself, exactly as the device compiler gets it,
// and the one function through which the runtime starts a thread of it.
//   -DMSDA_EMULATED_SOURCE="\"file.cu\""   the kernel's file
//   -DMSDA_EMULATED_ENTRY=name             its entry function
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

}  // namespace

extern "C" const size_t msda_params_bytes;
const size_t msda_params_bytes = params_bytes(MSDA_EMULATED_ENTRY);
extern "C" void msda_run_thread(const void* params) { call(MSDA_EMULATED_ENTRY, params); }
