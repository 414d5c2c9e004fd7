// The books that levels keep, for tests and simulations.
#include "draft/economics.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>

#include "bindings/bindings.h"

using namespace nanobind::literals;

namespace specqd {

void bind_economics(nb::module_& m) {
  nb::class_<Calibration>(m, "Calibration",
                          "Stated confidence -> how often such tokens were right.")
      .def(nb::init<double, double>(), "floor"_a = 0.0, "memory"_a = 300.0)
      .def("probability", &Calibration::probability, "confidence"_a)
      .def("observe", &Calibration::observe, "confidence"_a, "is_right"_a);
  nb::class_<BypassBias>(m, "BypassBias", "How much of what was expected came true.")
      .def(nb::init<>())
      .def_prop_ro("share", &BypassBias::share)
      .def("observe", &BypassBias::observe, "chance"_a, "is_right"_a);
  nb::class_<Estimate>(m, "Estimate", "What something takes on a machine that others use too.")
      .def(nb::init<>())
      .def("add", &Estimate::add, "sample"_a)
      .def_prop_ro("value", &Estimate::value);
  nb::class_<RowCosts>(m, "RowCosts", "Seconds of a forward by its number of rows.")
      .def(nb::init<>())
      .def("begin", &RowCosts::begin, "measured"_a, "Starts from seconds by rows.")
      .def("add", &RowCosts::add, "rows"_a, "seconds"_a)
      .def("seconds", &RowCosts::seconds, "rows"_a, "Estimated; 0 where nothing was measured yet.");
  nb::class_<TokenRate>(m, "TokenRate", "Tokens per second of a level, over its recent rounds.")
      .def(nb::init<>())
      .def("add", &TokenRate::add, "tokens"_a, "seconds"_a)
      .def_prop_ro("seconds_per_token", &TokenRate::seconds_per_token);
  nb::class_<ProbeBudget>(m, "ProbeBudget",
                          "Lets what does not pay be tried, at a bounded share of the time.")
      .def(nb::init<double>(), "share"_a = 0.005)
      .def("lend", &ProbeBudget::lend, "seconds"_a)
      .def("earn", &ProbeBudget::earn, "seconds"_a)
      .def("has", &ProbeBudget::has, "cost"_a, "loss"_a)
      .def("allows", &ProbeBudget::allows, "cost"_a, "loss"_a)
      .def("cost", &ProbeBudget::cost, "seconds"_a)
      .def("bring", &ProbeBudget::bring, "seconds"_a);
}

}  // namespace specqd
