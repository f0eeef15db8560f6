// ThreadPool.
#include "plan/thread_pool.h"

#include <memory>

#include "bind/bindings.h"

namespace penstock::bind {

namespace py = pybind11;

void bind_pool(py::module_& module) {
    py::class_<ThreadPool, std::shared_ptr<ThreadPool>>(module, "ThreadPool")
        .def(py::init([](int threads) {
                 if (threads < 1 || threads > 1024) {
                     throw py::value_error("threads: must be in 1..1024, got " +
                                           std::to_string(threads));
                 }
                 return std::make_shared<ThreadPool>(threads);
             }),
             py::arg("threads"))
        .def_property_readonly("threads", &ThreadPool::threads)
        .def_property_readonly("stalls", &ThreadPool::stalls);
}

}  // namespace penstock::bind
