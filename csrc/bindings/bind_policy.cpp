// The costs and calibrations that levels keep, for tests and simulations.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>

#include "bindings/bindings.h"
#include "draft/acceptance.h"
#include "draft/costs.h"

using namespace nanobind::literals;

namespace specqd {

void bind_policy(nb::module_& m, nb::module_& testing) {
  nb::class_<RowCosts>(m, "RowCosts", "Seconds of a forward by its number of rows.")
      .def(nb::init<>())
      .def("begin", &RowCosts::begin, "measured"_a, "first"_a = 1,
           "Starts from seconds by rows. No forward has fewer rows than `first`.")
      .def("add", &RowCosts::add, "rows"_a, "seconds"_a)
      .def("seconds", &RowCosts::seconds, "rows"_a,
           "Returns the estimate; 0 before anything was measured.");
  nb::class_<Calibration>(testing, "Calibration", "Stated confidence -> observed acceptance rate.")
      .def(nb::init<double>(), "floor"_a = 0.0)
      .def("probability", &Calibration::probability, "confidence"_a)
      .def("observe", &Calibration::observe, "confidence"_a, "is_accepted"_a);
  nb::class_<ReadingCosts>(testing, "ReadingCosts",
                           "Seconds of a forward that reads parts of prompts.")
      .def(nb::init<>())
      .def("begin", &ReadingCosts::begin, "measured"_a, "Starts from seconds by rows.")
      .def("add", &ReadingCosts::add, "rows"_a, "positions"_a, "seconds"_a)
      .def("rows_within", &ReadingCosts::rows_within, "seconds"_a, "position"_a);
  nb::class_<TokenRate>(testing, "TokenRate",
                        "Tokens per second of a level, over its recent rounds.")
      .def(nb::init<>())
      .def("add", &TokenRate::add, "tokens"_a, "seconds"_a)
      .def_prop_ro("seconds_per_token", &TokenRate::seconds_per_token);
  nb::class_<ProbeBudget>(testing, "ProbeBudget",
                          "Allows rounds that do not seem to pay, for a bounded share of the time.")
      .def(nb::init<double>(), "share"_a = 0.01)
      .def("begin", &ProbeBudget::begin, "seconds"_a)
      .def("pass_", &ProbeBudget::pass, "seconds"_a)
      .def("refund", &ProbeBudget::refund, "seconds"_a)
      .def_prop_ro("is_open", &ProbeBudget::is_open)
      .def("charge", &ProbeBudget::charge, "seconds"_a);
}

}  // namespace specqd
