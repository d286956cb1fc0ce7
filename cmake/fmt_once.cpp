// SPDX-License-Identifier: Apache-2.0
// fmt's out-of-line half, compiled once here. Header-only, every file that formats anything would
// compile it again (5 s each under -O2, 10 s under the sanitizers); the shared libfmt would be one
// more thing that the library asks of its users' machines, and Debian has no static one.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
namespace dragonbox {
template auto to_decimal<float>(float) noexcept -> decimal_fp<float>;
template auto to_decimal<double>(double) noexcept -> decimal_fp<double>;
}  // namespace dragonbox
}  // namespace detail
FMT_END_NAMESPACE
