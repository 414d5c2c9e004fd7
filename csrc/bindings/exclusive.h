// Native objects take no locks: a thread that uses one which another thread uses gets an error.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace specqd {

// Another thread uses the object.
struct InUse : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Marks objects as used by this thread, which may drop the GIL meanwhile. The same thread may mark
// an object again. The GIL guards the marks: it is held when an Exclusive is made and when it ends.
class Exclusive {
 public:
  Exclusive() = default;
  template <class... Objects>
  explicit Exclusive(const Objects*... objects) : Exclusive() {
    (take(objects), ...);
  }
  ~Exclusive();
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

  void take(const void* object);  // throws InUse

 private:
  size_t taken_ = 0;
};

// An argument as Python gives it: a list, where the method takes a span.
template <class T>
struct Given {
  using type = T;
};
template <class T>
struct Given<std::span<const T>> {
  using type = std::vector<T>;
};

// The method as a function of a bound class, which marks its object.
template <class Bound, class Object, class Result, class... Arguments>
auto exclusively(Result (Object::*method)(Arguments...)) {
  return [method](Bound& self, typename Given<Arguments>::type... arguments) -> Result {
    const Exclusive use(&self);
    return (self.*method)(arguments...);
  };
}

}  // namespace specqd
