// The lanes of plain streams (csrc/lanes), with the ends that are Python's.
#include <pybind11/stl.h>

#include <charconv>
#include <chrono>
#include <utility>

#include "bind/bindings.h"
#include "lanes/lane.h"

namespace penstock::bind {
namespace {

namespace py = pybind11;
using lanes::Gate;
using lanes::Lane;
using lanes::Lanes;
using lanes::StepTimes;
using lanes::TokenTexts;

// time.monotonic()
double now_s() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

class AskedTexts final : public TokenTexts {
  public:
    explicit AskedTexts(py::function read) : read_(std::move(read)) {}

  protected:
    bool read(uint32_t token, std::string& out) override {
        try {
            const py::object bytes = read_(token);
            if (!bytes.is_none()) {
                out = bytes.cast<py::bytes>();
                return true;
            }
        } catch (py::error_already_set& error) { // Python's own way tells of it
            error.discard_as_unraisable("TokenTexts");
        }
        return false;
    }

  private:
    py::function read_;
};

// Each frame is a chunk of HTTP/1.1.
class ChunkedGate final : public Gate {
  public:
    ChunkedGate(std::string before, std::string after, py::object write,
                std::optional<uint64_t> number, std::string between)
        : Gate(std::move(before), std::move(after), number, std::move(between)),
          write_(std::move(write)) {}

    // It may be called from `write`, and what it held may be what holds it.
    void close() override {
        Gate::close();
        const py::object write = std::exchange(write_, py::none());
    }

  protected:
    void write(std::string_view frame) override {
        const py::object write = write_;
        try {
            write(chunk(frame));
        } catch (py::error_already_set& error) {
            error.discard_as_unraisable("Gate");
            close();
        }
    }

  private:
    static py::object chunk(std::string_view frame) {
        char head[18];
        char* const digits = std::to_chars(head, head + 16, frame.size(), 16).ptr;
        digits[0] = '\r';
        digits[1] = '\n';
        const std::string_view size(head, static_cast<size_t>(digits + 2 - head));
        const auto total = static_cast<py::ssize_t>(size.size() + frame.size() + 2);
        PyObject* const bytes = PyBytes_FromStringAndSize(nullptr, total);
        if (bytes == nullptr) {
            throw py::error_already_set();
        }
        char* const data = PyBytes_AS_STRING(bytes);
        size.copy(data, size.size());
        frame.copy(data + size.size(), frame.size());
        data[total - 2] = '\r';
        data[total - 1] = '\n';
        return py::reinterpret_steal<py::object>(bytes);
    }

    py::object write_;
};

class ToldTimes final : public StepTimes {
  public:
    ToldTimes(std::vector<double> bounds, double last_s, double told_every_s, py::function told)
        : StepTimes(std::move(bounds), last_s, told_every_s), told_(std::move(told)) {}

  protected:
    void tell(const std::vector<uint64_t>& counts, double total_s) override {
        try {
            told_(counts, total_s);
        } catch (py::error_already_set& error) {
            error.discard_as_unraisable("StepTimes");
        }
    }

  private:
    py::function told_;
};

py::list feed(Lanes& lanes, const py::bytes& data) {
    py::list bodies;
    for (const std::string& body : lanes.feed(std::string_view(data), now_s())) {
        bodies.append(py::bytes(body));
    }
    return bodies;
}

} // namespace

void bind_lanes(py::module_& module) {
    py::class_<TokenTexts, std::shared_ptr<TokenTexts>>(module, "TokenTexts")
        .def(py::init([](py::function read) -> std::shared_ptr<TokenTexts> {
                 return std::make_shared<AskedTexts>(std::move(read));
             }),
             py::arg("read"));
    py::class_<Gate, std::shared_ptr<Gate>>(module, "Gate")
        .def(py::init([](const py::bytes& before, const py::bytes& after, py::object write,
                         std::optional<uint64_t> number,
                         const py::bytes& between) -> std::shared_ptr<Gate> {
                 return std::make_shared<ChunkedGate>(before, after, std::move(write), number,
                                                      between);
             }),
             py::arg("before"), py::arg("after"), py::arg("write"), py::arg("number") = py::none(),
             py::arg("between") = py::bytes())
        .def("close", &Gate::close)
        .def_property_readonly("is_open", &Gate::open)
        .def_property_readonly("written_s", &Gate::written_s)
        .def_property_readonly("number", &Gate::number);
    py::class_<StepTimes, std::shared_ptr<StepTimes>>(module, "StepTimes")
        .def(py::init([](std::vector<double> bounds, double last_s, double told_every_s,
                         py::function told) -> std::shared_ptr<StepTimes> {
                 return std::make_shared<ToldTimes>(std::move(bounds), last_s, told_every_s,
                                                    std::move(told));
             }),
             py::arg("bounds"), py::arg("last_s"), py::arg("told_every_s"), py::arg("told"))
        .def("flush", &StepTimes::flush)
        .def_property_readonly("num_tokens", &StepTimes::num_tokens)
        .def_property_readonly("last_s", &StepTimes::last_s);
    py::class_<Lane, std::shared_ptr<Lane>>(module, "Lane")
        .def(py::init([](std::shared_ptr<TokenTexts> texts, std::shared_ptr<Gate> gate,
                         const py::bytes& held) {
                 return std::make_shared<Lane>(std::move(texts), std::move(gate), held);
             }),
             py::arg("texts").none(false), py::arg("gate").none(false),
             py::arg("held") = py::bytes())
        .def("close", &Lane::close)
        .def("time", &Lane::time, py::arg("times"))
        .def_property_readonly("text", &Lane::text)
        .def_property_readonly("held", [](const Lane& lane) { return py::bytes(lane.held()); })
        .def_property_readonly("num_tokens", &Lane::num_tokens);
    py::class_<Lanes>(module, "Lanes")
        .def(py::init<size_t>(), py::arg("most_frame_bytes"))
        .def("open", &Lanes::open, py::arg("id"), py::arg("lane").none(false))
        .def("close", &Lanes::close, py::arg("id"))
        .def("restart", &Lanes::restart)
        .def("feed", &feed, py::arg("data"));
}

} // namespace penstock::bind
