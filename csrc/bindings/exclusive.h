// Native objects have no locks. If a thread uses an object that another thread is using, it gets an
// error.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace specqd {

// Another thread is using the object.
struct InUse : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Marks objects as used by this thread, which may release the GIL meanwhile. The same thread may
// mark an object again. The GIL protects the marks, so it must be held when an Exclusive is made
// and when it is destroyed.
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

// The type of an argument that Python passes: a list if the method takes a span.
template <class T>
struct Given {
  using type = T;
};
template <class T>
struct Given<std::span<const T>> {
  using type = std::vector<T>;
};

// Wraps a method as a function of a bound class that marks its object as used.
template <class Bound, class Object, class Result, class... Arguments>
auto exclusively(Result (Object::*method)(Arguments...)) {
  return [method](Bound& self, typename Given<Arguments>::type... arguments) -> Result {
    const Exclusive use(&self);
    return (self.*method)(arguments...);
  };
}

}  // namespace specqd
