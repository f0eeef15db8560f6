// The way of a stream's plain tokens: from the engine's frames to those of the client, past Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lanes/chunk_frame.h"

namespace penstock::lanes {

// The bytes of tokens, each asked for when it is first seen.
class TokenTexts {
  public:
    TokenTexts() = default;
    TokenTexts(const TokenTexts&) = delete;
    TokenTexts& operator=(const TokenTexts&) = delete;
    virtual ~TokenTexts() = default;

    // Append the bytes of a token. False where it is more than a piece of text.
    bool append(uint32_t token, std::string& out);

  protected:
    // Put a token's bytes into `out`; false where it is more than a piece of text.
    virtual bool read(uint32_t token, std::string& out) = 0;

  private:
    enum class State : uint8_t { unknown, text, other };
    struct Entry {
        uint32_t at = 0;
        uint32_t size : 30 = 0;
        uint32_t state : 2 = 0;
    };
    std::vector<Entry> entries_;
    std::string bytes_;
};

// Where the texts of one stream go, each in a frame of its own.
class Gate {
  public:
    // A frame is `before`, the text as JSON without its quotes, `after`; with a `number`, `before`,
    // the number, `between` and so on, and each frame has the next number.
    Gate(std::string before, std::string after, std::optional<uint64_t> number,
         std::string between);
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    virtual ~Gate() = default;

    // Send a text that is not empty. Once closed, it goes nowhere.
    void send(std::string_view text, double now_s);
    virtual void close() { open_ = false; }
    bool open() const { return open_; }
    double written_s() const { return written_s_; }
    std::optional<uint64_t> number() const { return number_; }

  protected:
    virtual void write(std::string_view frame) = 0;

  private:
    std::string before_, between_, after_;
    std::optional<uint64_t> number_;
    std::string frame_;
    bool open_ = true;
    double written_s_ = 0;
};

// Counts the times between the tokens of one stream in the buckets of a histogram.
class StepTimes {
  public:
    // `bounds`: upper ends of all buckets but the last. `last_s`: time of the token before.
    StepTimes(std::vector<double> bounds, double last_s, double told_every_s);
    StepTimes(const StepTimes&) = delete;
    StepTimes& operator=(const StepTimes&) = delete;
    virtual ~StepTimes() = default;

    void observe(size_t num_tokens, double now_s);
    size_t num_tokens() const { return num_tokens_; }
    double last_s() const { return last_s_; }
    // Tell what was counted since the last time.
    void flush();

  protected:
    virtual void tell(const std::vector<uint64_t>& counts, double total_s) = 0;

  private:
    std::vector<double> bounds_;
    std::vector<uint64_t> counts_;
    double last_s_, told_every_s_;
    double total_s_ = 0;
    size_t num_tokens_ = 0;
};

// The text of one stream while its tokens are plain.
class Lane {
  public:
    // `held`: bytes of an unfinished character.
    Lane(std::shared_ptr<TokenTexts> texts, std::shared_ptr<Gate> gate, std::string held);

    // Take the tokens of a step. False, and nothing is taken, where they need more than this way.
    bool take(std::span<const uint32_t> tokens, double step_s);
    // Send what was taken, as one frame.
    void flush(double now_s);
    void close() { gate_->close(); }
    bool open() const { return gate_->open(); }
    void time(std::shared_ptr<StepTimes> times) { times_ = std::move(times); }

    bool waiting() const { return taken_ > 0; }
    const std::string& text() const { return text_; }
    const std::string& held() const { return fresh_; }
    size_t num_tokens() const { return num_tokens_; }

  private:
    std::shared_ptr<TokenTexts> texts_;
    std::shared_ptr<Gate> gate_;
    std::shared_ptr<StepTimes> times_;
    std::string text_;  // all that was sent
    std::string fresh_; // whole characters that were not, then the held bytes
    size_t whole_ = 0;  // bytes of the former
    size_t taken_ = 0;  // tokens since the last flush
    size_t num_tokens_ = 0;
    double step_s_ = 0;
};

// The open lanes of a connection to an engine, and what the engine sends on it.
class Lanes {
  public:
    explicit Lanes(size_t most_frame_bytes) : most_frame_bytes_(most_frame_bytes) {}

    void open(std::string id, std::shared_ptr<Lane> lane);
    // Harmless for one that is not open.
    void close(const std::string& id);
    // Another connection begins.
    void restart() {
        pending_.clear();
        waiting_.clear();
    }
    // Send on what `data` brings for open lanes. The bodies of the frames that it completes,
    // without that. A lane closes before something that is not for it. Throws std::length_error at
    // a frame that is too long.
    std::vector<std::string> feed(std::string_view data, double now_s);

  private:
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const {
            return std::hash<std::string_view>{}(text);
        }
    };

    void handle(std::string_view body, double now_s, std::vector<std::string>& left);
    bool take(const Row& row, double now_s);
    void flush(double now_s);

    size_t most_frame_bytes_;
    std::string pending_;
    std::unordered_map<std::string, std::shared_ptr<Lane>, Hash, std::equal_to<>> open_;
    std::vector<std::shared_ptr<Lane>> waiting_;
    ChunkFrame frame_;
};

} // namespace penstock::lanes
