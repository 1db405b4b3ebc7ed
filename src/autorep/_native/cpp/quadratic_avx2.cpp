// The quadratics four elements at a time.
#include "quadratic.h"

#if AUTOREP_X86
#include "quadratic_loops.h"

namespace autorep {

const QuadraticOps& quadratic_ops_avx2() {
    static const QuadraticOps ops = {share_loop, material_loop, parts_loop};
    return ops;
}

}  // namespace autorep
#endif
