// Python constructors of the core's structs. A binding lists the members of its struct once:
//
//   bind_struct<Norm>(m, "Norm", "A norm.", required<&Norm::weight>, optional<&Norm::bias>);
//
// A member's name in Python is its name in C++. All are keywords without a default, so a wrong or
// missing name raises TypeError. A list that lacks a member or repeats one does not compile.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/bindings.h"

namespace specqd {

// The type of the argument that Python passes for a member, and its conversion to the member.
template <class Member>
struct Argument {
  using Type = Member;
  static Member convert(Member value) { return value; }
};

template <class Kind>
  requires std::is_enum_v<Kind>
struct Argument<Kind> {
  using Type = std::string;
  static Kind convert(const std::string& name) { return kind_of<Kind>(name); }
};

template <class T>
  requires(std::is_same_v<T, float> || std::is_same_v<T, uint16_t>)
struct Argument<std::vector<T>> {
  using Type = nb::ndarray<const T, nb::numpy, nb::ndim<1>, nb::c_contig>;
  static std::vector<T> convert(const Type& array) {
    return {array.data(), array.data() + array.size()};
  }
};

// The compiler's own text for this function. It contains "Member = &specqd::Norm::weight", and then
// "]" or, in GCC's text, "; " and other names.
template <auto Member>
consteval std::string_view spelling() {
  return __PRETTY_FUNCTION__;
}

// The name of a member, with a final zero: that of &Norm::weight is "weight".
template <auto Member>
constexpr auto kMemberName = [] {
  constexpr std::string_view name = [] {
    std::string_view text = spelling<Member>();
    text.remove_prefix(text.find("Member = "));
    text = text.substr(0, text.find_first_of(";])"));
    return text.substr(text.rfind(':') + 1);
  }();
  std::array<char, name.size() + 1> text{};
  std::copy(name.begin(), name.end(), text.begin());
  return text;
}();

template <auto Member, bool is_optional>
struct Field;

// An optional member keeps its default of C++ where Python passes None.
template <class Struct, class Value, Value Struct::* Member, bool is_optional>
struct Field<Member, is_optional> {
  using Owner = Struct;
  using Given = Argument<Value>;
  using Type =
      std::conditional_t<is_optional, std::optional<typename Given::Type>, typename Given::Type>;
  static constexpr std::string_view kName{kMemberName<Member>.data()};

  static auto keyword() {
    if constexpr (is_optional)
      return nb::arg(kName.data()).none();
    else
      return nb::arg(kName.data());
  }
  static void set(Struct& made, Type value) {
    if constexpr (!is_optional)
      made.*Member = Given::convert(std::move(value));
    else if (value)
      made.*Member = Given::convert(std::move(*value));
  }
};

template <auto Member>
constexpr Field<Member, false> required;
template <auto Member>
constexpr Field<Member, true> optional;

// Initialises a member of any type.
struct AnyMember {
  template <class T>
  operator T() const;
};

// The number of members of an aggregate: as many as may be initialised.
template <class Struct, class... Members>
consteval size_t count_members() {
  if constexpr (requires { Struct{Members{}..., AnyMember{}}; })
    return count_members<Struct, Members..., AnyMember>();
  else
    return sizeof...(Members);
}

// Whether fields and internal members are all members of the struct, each once.
template <class Struct, auto... Internal, class... Fields>
consteval bool lists_all_members(const Fields&...) {
  std::array<std::string_view, sizeof...(Fields) + sizeof...(Internal)> names{
      Fields::kName..., kMemberName<Internal>.data()...};
  std::sort(names.begin(), names.end());
  return (std::is_same_v<typename Fields::Owner, Struct> && ...) &&
         std::adjacent_find(names.begin(), names.end()) == names.end() &&
         names.size() == count_members<Struct>();
}

// Python passes no value for an internal member.
template <class Struct, auto... Internal, class... Fields>
void bind_struct(nb::module_& m, const char* name, const char* doc, const Fields&...) {
  static_assert(lists_all_members<Struct, Internal...>(Fields{}...),
                "list every member of the struct once");
  nb::class_<Struct>(m, name, doc)
      .def(
          "__init__",
          [](Struct* self, typename Fields::Type... values) {
            Struct made{};
            (Fields::set(made, std::move(values)), ...);
            new (self) Struct(std::move(made));
          },
          nb::kw_only(), Fields::keyword()...);
}

}  // namespace specqd
