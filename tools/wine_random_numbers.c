// `bcryptprimitives.dll`, from which Rust programs take random numbers on Windows 10. Wine 8 lacks it.
#include <stddef.h>

__declspec(dllimport) unsigned char __stdcall SystemFunction036(void* buffer, unsigned long length);

__declspec(dllexport) int __stdcall ProcessPrng(unsigned char* buffer, size_t length) {
    return SystemFunction036(buffer, (unsigned long)length);
}
