#include "lanes/lane.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

#include "lanes/text.h"

namespace penstock::lanes {
namespace {

constexpr size_t LENGTH_BYTES = 4;
constexpr size_t MOST_TOKENS = size_t{1} << 24; // of a vocabulary; a larger id is a mistake
constexpr size_t MOST_TOKEN_BYTES = size_t{1} << 20;

uint32_t length_at(std::string_view data) {
    uint32_t length = 0;
    for (size_t k = 0; k < LENGTH_BYTES; ++k) {
        length |= static_cast<uint32_t>(static_cast<uint8_t>(data[k])) << (8 * k);
    }
    return length;
}

} // namespace

bool TokenTexts::append(uint32_t token, std::string& out) {
    if (token >= MOST_TOKENS) {
        return false;
    }
    if (token >= entries_.size()) {
        entries_.resize(token + 1);
    }
    Entry& entry = entries_[token];
    if (entry.state == static_cast<uint32_t>(State::unknown)) {
        std::string bytes;
        const bool is_text = read(token, bytes) && bytes.size() < MOST_TOKEN_BYTES;
        entry.state = static_cast<uint32_t>(is_text ? State::text : State::other);
        if (is_text) {
            entry.at = static_cast<uint32_t>(bytes_.size());
            entry.size = static_cast<uint32_t>(bytes.size()) & (MOST_TOKEN_BYTES - 1);
            bytes_ += bytes;
        }
    }
    out.append(bytes_, entry.at, entry.size);
    return entry.state == static_cast<uint32_t>(State::text);
}

Gate::Gate(std::string before, std::string after, std::optional<uint64_t> number,
           std::string between)
    : before_(std::move(before)), between_(std::move(between)), after_(std::move(after)),
      number_(number) {}

void Gate::send(std::string_view text, double now_s) {
    if (!open_) {
        return;
    }
    frame_.assign(before_);
    if (number_) {
        char digits[20];
        const auto end = std::to_chars(digits, digits + sizeof digits, (*number_)++).ptr;
        frame_.append(digits, end).append(between_);
    }
    append_json(frame_, text);
    frame_ += after_;
    written_s_ = now_s;
    write(frame_);
}

StepTimes::StepTimes(std::vector<double> bounds, double last_s, double told_every_s)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1), last_s_(last_s),
      told_every_s_(told_every_s) {}

void StepTimes::observe(size_t num_tokens, double now_s) {
    const double passed_s = now_s - last_s_;
    const double each_s = passed_s / static_cast<double>(num_tokens);
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), each_s) - bounds_.begin();
    counts_[static_cast<size_t>(bucket)] += num_tokens;
    num_tokens_ += num_tokens;
    total_s_ += passed_s;
    last_s_ = now_s;
    if (total_s_ >= told_every_s_) {
        flush();
    }
}

void StepTimes::flush() {
    tell(counts_, total_s_);
    std::fill(counts_.begin(), counts_.end(), 0);
    total_s_ = 0;
}

Lane::Lane(std::shared_ptr<TokenTexts> texts, std::shared_ptr<Gate> gate, std::string held)
    : texts_(std::move(texts)), gate_(std::move(gate)), fresh_(std::move(held)) {}

bool Lane::take(std::span<const uint32_t> tokens, double step_s) {
    const size_t before = fresh_.size();
    for (const uint32_t token : tokens) {
        if (!texts_->append(token, fresh_)) {
            fresh_.resize(before);
            return false;
        }
    }
    const Whole more = whole_characters(std::string_view(fresh_).substr(whole_));
    if (more.bad) {
        fresh_.resize(before);
        return false;
    }
    whole_ += more.size;
    taken_ += tokens.size();
    step_s_ = step_s;
    return true;
}

void Lane::flush(double now_s) {
    if (!waiting()) {
        return;
    }
    num_tokens_ += taken_;
    if (times_ != nullptr) {
        times_->observe(taken_, step_s_);
    }
    taken_ = 0;
    if (whole_ > 0) {
        const std::string_view whole = std::string_view(fresh_).substr(0, whole_);
        text_ += whole;
        gate_->send(whole, now_s);
        fresh_.erase(0, whole_);
        whole_ = 0;
    }
}

void Lanes::open(std::string id, std::shared_ptr<Lane> lane) {
    open_.insert_or_assign(std::move(id), std::move(lane));
}

void Lanes::close(const std::string& id) {
    const auto found = open_.find(id);
    if (found != open_.end()) {
        found->second->close();
        open_.erase(found);
    }
}

std::vector<std::string> Lanes::feed(std::string_view data, double now_s) {
    std::vector<std::string> left;
    const bool joins = !pending_.empty();
    if (joins) {
        pending_ += data;
    }
    const std::string_view all = joins ? std::string_view(pending_) : data;
    size_t at = 0;
    while (all.size() - at >= LENGTH_BYTES) {
        const uint32_t size = length_at(all.substr(at));
        if (size > most_frame_bytes_) {
            throw std::length_error("frame of " + std::to_string(size) + " bytes");
        }
        if (all.size() - at - LENGTH_BYTES < size) {
            break;
        }
        handle(all.substr(at + LENGTH_BYTES, size), now_s, left);
        at += LENGTH_BYTES + size;
    }
    std::string rest(all.substr(at));
    pending_ = std::move(rest);
    flush(now_s);
    return left;
}

void Lanes::handle(std::string_view body, double now_s, std::vector<std::string>& left) {
    if (open_.empty() || !read_chunks(body, frame_)) {
        left.emplace_back(body);
        return;
    }
    std::vector<std::string_view> rows;
    for (const Row& row : frame_.rows) {
        if (!take(row, now_s)) {
            rows.push_back(row.raw);
        }
    }
    if (rows.size() == frame_.rows.size()) {
        left.emplace_back(body);
    } else if (!rows.empty()) {
        left.push_back(chunks_of(rows));
    }
}

bool Lanes::take(const Row& row, double now_s) {
    const auto found = open_.find(row.id);
    if (found == open_.end()) {
        return false;
    }
    Lane& lane = *found->second;
    const bool waiting = lane.waiting();
    const auto tokens = std::span(frame_.tokens).subspan(row.first_token, row.num_tokens);
    if (!row.plain || !lane.open() || !lane.take(tokens, row.step_time_s)) {
        lane.flush(now_s);
        lane.close();
        open_.erase(found);
        return false;
    }
    if (!waiting) {
        waiting_.push_back(found->second);
    }
    return true;
}

void Lanes::flush(double now_s) {
    const auto waiting = std::exchange(waiting_, {});
    for (const auto& lane : waiting) {
        lane->flush(now_s);
    }
}

} // namespace penstock::lanes
