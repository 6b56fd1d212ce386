// Textures and surfaces by handle. Included by the kernels that need it; the emulator has no textures and no
// twins of these.
#pragma once

#include "intrinsics.cuh"

namespace msda {

// A layered texture of half4 texels and a surface of the same memory, made by the driver
// (src/texture.rs).
struct LevelTexture {
    unsigned long long texture;
    unsigned long long surface;
};

// The texel at a position, filtered bilinearly from its four neighbours: texel (i, j) has its centre at (i +
// 0.5, j + 0.5), and texels outside of the layer are zero. The two fractions have 8 bits.
MSDA_DEVICE void sample_texture(float (&texel)[4], const LevelTexture& level, int layer, float x, float y) {
    asm("tex.a2d.v4.f32.f32 {%0, %1, %2, %3}, [%4, {%5, %6, %7, %7}];"
        : "=f"(texel[0]), "=f"(texel[1]), "=f"(texel[2]), "=f"(texel[3])
        : "l"(level.texture), "r"(layer), "f"(x), "f"(y));
}

// Writes one texel of 8 bytes; textures see it in the next kernel.
MSDA_DEVICE void store_texel(const LevelTexture& level, int layer, int x, int y, const unsigned (&texel)[2]) {
    asm volatile("sust.b.a2d.v2.b32.trap [%0, {%1, %2, %3, %3}], {%4, %5};" ::"l"(level.surface), "r"(layer),
                 "r"(x * 8), "r"(y), "r"(texel[0]), "r"(texel[1])
                 : "memory");
}

}  // namespace msda
