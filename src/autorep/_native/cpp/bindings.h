// Python arrays as kernels take them: C-contiguous, on the CPU; shapes are checked by the Python face.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common.h"

namespace nb = nanobind;

namespace autorep {

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Words = Array<const u64>;
using WordsOut = Array<u64>;
using Bytes = Array<const u8>;
using BytesOut = Array<u8>;
using Index = Array<const i64>;

using NoGil = nb::call_guard<nb::gil_scoped_release>;

// One per source file that offers functions to Python; module.cpp calls them all.
void register_runtime(nb::module_& m);
void register_conv(nb::module_& m);
void register_prg(nb::module_& m);
void register_dcf(nb::module_& m);
void register_sign(nb::module_& m);
void register_bits(nb::module_& m);
void register_activation(nb::module_& m);
void register_quadratic(nb::module_& m);
void register_streams(nb::module_& m);
void register_probe(nb::module_& m);
void register_masked_activation(nb::module_& m);
void register_ot(nb::module_& m);
void register_ntt(nb::module_& m);
void register_rlwe(nb::module_& m);

}  // namespace autorep
