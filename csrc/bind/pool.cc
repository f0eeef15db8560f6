// Python binding of ThreadPool.
#include "plan/thread_pool.h"

#include <chrono>
#include <memory>

#include "bind/bindings.h"

namespace penstock::bind {

namespace py = pybind11;

namespace {

// Returns the mean seconds of a phase of `tasks` empty tasks. Used by the thread pool benchmark.
double phase_overhead_s(ThreadPool& pool, int64_t tasks, int64_t rounds) {
    const py::gil_scoped_release release;
    const auto started = std::chrono::steady_clock::now();
    for (int64_t round = 0; round < rounds; ++round) {
        pool.parallel_for(tasks, [](int64_t) {});
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - started;
    return taken.count() / static_cast<double>(rounds);
}

} // namespace

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
    module.def("phase_overhead_s", &phase_overhead_s, py::arg("pool"), py::arg("tasks"),
               py::arg("rounds"));
}

} // namespace penstock::bind
