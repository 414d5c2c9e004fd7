// The names of 64-bit ARM cores, and what this one can do.
#pragma once

#include <cstdint>
#include <string>

namespace specqd {

// The name of the core with this main ID register (MIDR_EL1), such as "Arm Neoverse-N1". Of a core
// that is not listed, the register's value.
std::string arm_core_name(uint32_t midr);

#if defined(__aarch64__)
// Whether this CPU has dot products of bytes (SDOT, FEAT_DotProd).
bool has_dot_products();
// The main ID register of the core that the thread runs on; 0 if the system does not show it.
uint32_t main_id_register();
#endif

}  // namespace specqd
