// tiles.cuh - K and V of 16 tokens in shared memory, as operands of tensor cores.
//
// A row, a token's, is stored in pieces of 16 bytes.  Pieces change places within their row, so that the same
// piece of 8 rows, which is loaded at once, lies in 8 different groups of banks.
#pragma once
#include "instructions.cuh"

constexpr int TILE = 16;  // tokens

template <typename T, int HEAD_DIM> struct Pieces {
  static constexpr int PIECES = HEAD_DIM * sizeof(T) / 16;  // of a row
  uint4 k[TILE * PIECES], v[TILE * PIECES];

  __device__ static int at(int row, int piece) {
    constexpr int ROWS = PIECES < 8 ? 8 / PIECES : 1;  // that fill the banks once
    return row * PIECES + (piece ^ row / ROWS % (8 / ROWS));
  }
};

// keys(a, i): the matrices [16 tokens x 16 dims] for dims 32 i to 32 i + 15, and for the 16 after them.
// values(a, i): the same of V, transposed: [16 dims x 16 tokens].
// In what order dims come within 16 is a tile's own choice, if queries and results follow it: query_pair(c, j) is
// the pair of dims that a query has in column pair c of matrix j, result_dim(r, j) the dim in row r of matrix j.
template <typename T, int HEAD_DIM> struct Tile;

template <int HEAD_DIM> struct Tile<__half, HEAD_DIM> : Pieces<__half, HEAD_DIM> {
  __device__ static int query_pair(int c, int j) { return c + 4 * j; }
  __device__ static int result_dim(int r, int j) { return r + 8 * j; }

  __device__ void keys(unsigned (&a)[2][4], int i, int lane) const {
    for (int f = 0; f < 2; ++f) load_matrices(a[f], &this->k[this->at(lane % 16, 4 * i + 2 * f + lane / 16)]);
  }
  __device__ void values(unsigned (&a)[2][4], int i, int lane) const {
    for (int f = 0; f < 2; ++f)
      load_transposed(a[f], &this->v[this->at(lane / 16 * 8 + lane % 8, 4 * i + 2 * f + lane / 8 % 2)]);
  }
};

// Bytes are loaded as if two neighbours were one half.  So a lane has 4 dims of a token, or 2 dims of 2 tokens.
template <int HEAD_DIM> struct Tile<signed char, HEAD_DIM> : Pieces<signed char, HEAD_DIM> {
  __device__ static int query_pair(int c, int j) { return 2 * c + j; }
  __device__ static int result_dim(int r, int j) { return 2 * r + j; }

  __device__ void keys(unsigned (&a)[2][4], int i, int lane) const {
    unsigned x[4];
    load_matrices(x, &this->k[this->at(lane % 16, 2 * i + lane / 16)]);
    for (int m = 0; m < 4; ++m)
      a[m / 2][m % 2] = two_of_bytes<0, 1>(x[m]), a[m / 2][m % 2 + 2] = two_of_bytes<2, 3>(x[m]);
  }
  __device__ void values(unsigned (&a)[2][4], int i, int lane) const {
    unsigned x[4];
    load_transposed(x, &this->v[this->at(lane % 16, 2 * i + lane / 16)]);
    for (int m = 0; m < 4; ++m)
      a[m / 2][m % 2 * 2] = two_of_bytes<0, 2>(x[m]), a[m / 2][m % 2 * 2 + 1] = two_of_bytes<1, 3>(x[m]);
  }
};
