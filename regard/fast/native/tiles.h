// Products of bytes by AMX: a tile is a register of 16 rows of 64 bytes, and one instruction multiplies a tile of
// vectors by a tile of a matrix. The sums are those of kernels.cpp, so what comes of them is the same to the bit.
#pragma once

#include <stdint.h>
#include <string.h>

namespace {

constexpr int TILE = 16;       // vectors of a tile, and outputs
constexpr int TILE_DEEP = 64;  // inputs

// What the instructions are told of each tile. 0 to 3 are sums, 4 and 5 vectors, 6 and 7 of the matrix.
struct alignas(64) Shapes {
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t width[16] = {};  // in bytes
    uint8_t rows[16] = {};

    explicit Shapes(int vectors) {
        for (int tile = 0; tile < 8; ++tile) {
            width[tile] = 64;
            rows[tile] = tile < 6 ? vectors : TILE;
        }
    }
};

// By name and not by a compiler's functions: an older one would have to be told of them by a flag that it does not know.
#define TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::: "memory")
#define TILE_LOAD(tile, from, apart) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((long)(apart)) : "memory")
#define TILE_STORE(tile, to) asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(64L) : "memory")
#define TILE_ADD(sums, vectors, matrix) \
    asm volatile("tdpbusd %%tmm" #matrix ", %%tmm" #vectors ", %%tmm" #sums ::: "memory")

// From here on, until they are let go of: tiles that are in use would be kept for this thread by the system.
struct Tiles {
    explicit Tiles(int vectors) {
        const Shapes shapes(vectors);
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~Tiles() { asm volatile("tilerelease"); }
};

typedef int32_t Sums[TILE * TILE];

// Sums of one tile of vectors, or of two, and 32 outputs, whose numbers lie in one panel.
template <int TWO>
inline void tile_sums(const int8_t* panel, int deep, const uint8_t* first, const uint8_t* second, Sums (&sums)[2][2]) {
    constexpr int line = 2 * TILE * 4;
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (TWO) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int k = 0; k < deep; k += TILE_DEEP, panel += TILE_DEEP * 2 * TILE) {
        TILE_LOAD(6, panel, line);
        TILE_LOAD(4, first + k, deep);
        TILE_ADD(0, 4, 6);
        TILE_LOAD(7, panel + 64, line);
        TILE_ADD(1, 4, 7);
        if (TWO) {
            TILE_LOAD(5, second + k, deep);
            TILE_ADD(2, 5, 6);
            TILE_ADD(3, 5, 7);
        }
    }
    TILE_STORE(0, sums[0][0]);
    TILE_STORE(1, sums[0][1]);
    if (TWO) {
        TILE_STORE(2, sums[1][0]);
        TILE_STORE(3, sums[1][1]);
    }
}

}  // namespace
