#include "lanes/chunk_frame.h"

#include <bit>

namespace penstock::lanes {
namespace {

// {"type": "chunks", "chunks": ...
constexpr std::string_view HEAD = "\x82\xA4type\xA6"
                                  "chunks\xA6"
                                  "chunks";
constexpr uint8_t NIL = 0xC0, FLOAT64 = 0xCB, STR8 = 0xD9, ARRAY16 = 0xDC, ARRAY32 = 0xDD;
constexpr uint32_t CHUNK_FIELDS = 8, TOKEN_FIELDS = 3;

// A place in msgpack. What reads returns false at something else, and then the place is undefined.
class Cursor {
  public:
    explicit Cursor(std::string_view data) : data_(data) {}

    size_t at() const { return at_; }
    void back_to(size_t at) { at_ = at; }

    bool head(std::string_view expected) {
        const bool same = data_.substr(at_, expected.size()) == expected;
        at_ += expected.size();
        return same;
    }

    bool nil() {
        uint8_t tag = 0;
        return byte(tag) && tag == NIL;
    }

    bool array(uint32_t& size) {
        uint8_t tag = 0;
        if (!byte(tag)) {
            return false;
        }
        if ((tag & 0xF0) == 0x90) {
            size = tag & 0x0F;
            return true;
        }
        uint64_t value = 0;
        if ((tag != ARRAY16 && tag != ARRAY32) || !number(tag == ARRAY16 ? 2 : 4, value)) {
            return false;
        }
        size = static_cast<uint32_t>(value);
        return true;
    }

    bool text(std::string_view& value) {
        uint8_t tag = 0;
        uint64_t size = 0;
        if (!byte(tag)) {
            return false;
        }
        if ((tag & 0xE0) == 0xA0) {
            size = tag & 0x1F;
        } else if (tag != STR8 || !number(1, size)) {
            return false;
        }
        value = data_.substr(at_, size);
        return pass(size);
    }

    bool real(double& value) {
        uint8_t tag = 0;
        uint64_t bits = 0;
        if (!byte(tag) || tag != FLOAT64 || !number(8, bits)) {
            return false;
        }
        value = std::bit_cast<double>(bits);
        return true;
    }

    bool natural(uint32_t& value) {
        uint8_t tag = 0;
        uint64_t wide = 0;
        if (!byte(tag)) {
            return false;
        }
        if (tag < 0x80) {
            value = tag;
            return true;
        }
        if (tag < 0xCC || tag > 0xCE || !number(size_t{1} << (tag - 0xCC), wide)) {
            return false;
        }
        value = static_cast<uint32_t>(wide);
        return true;
    }

    // One value of any kind.
    bool skip() {
        uint64_t left = 1;
        for (; left > 0; --left) {
            uint64_t inside = 0;
            if (!skip_head(inside)) {
                return false;
            }
            left += inside;
        }
        return true;
    }

  private:
    bool pass(uint64_t size) {
        if (size > data_.size() - at_) {
            return false;
        }
        at_ += size;
        return true;
    }

    bool byte(uint8_t& value) {
        if (at_ >= data_.size()) {
            return false;
        }
        value = static_cast<uint8_t>(data_[at_++]);
        return true;
    }

    bool number(size_t size, uint64_t& value) {
        if (at_ > data_.size() || size > data_.size() - at_) {
            return false;
        }
        value = 0;
        for (size_t k = 0; k < size; ++k) {
            value = value << 8 | static_cast<uint8_t>(data_[at_++]);
        }
        return true;
    }

    // A value up to the values in it, and how many these are.
    bool skip_head(uint64_t& inside) {
        uint8_t tag = 0;
        if (!byte(tag)) {
            return false;
        }
        uint64_t size = 0;
        if (tag < 0x80 || tag >= 0xE0 || tag == 0xC0 || tag == 0xC2 || tag == 0xC3) {
            return true; // small integers, nil, booleans
        }
        if (tag < 0xA0) { // small maps and arrays
            inside = (tag & 0x0Fu) * (tag < 0x90 ? 2u : 1u);
            return true;
        }
        if (tag < 0xC0) {
            return pass(tag & 0x1F);
        }
        switch (tag) {
        case 0xC4:
        case 0xD9: return number(1, size) && pass(size);
        case 0xC5:
        case 0xDA: return number(2, size) && pass(size);
        case 0xC6:
        case 0xDB: return number(4, size) && pass(size);
        case 0xCC:
        case 0xD0: return pass(1);
        case 0xCD:
        case 0xD1: return pass(2);
        case 0xCA:
        case 0xCE:
        case 0xD2: return pass(4);
        case 0xCB:
        case 0xCF:
        case 0xD3: return pass(8);
        case 0xDC: return number(2, inside);
        case 0xDD: return number(4, inside);
        default: return false; // wide maps and extensions: nothing of ours has them
        }
    }

    std::string_view data_;
    size_t at_ = 0;
};

bool read_token(Cursor& cursor, std::vector<uint32_t>& tokens) {
    uint32_t fields = 0, token = 0, top = 0;
    if (!cursor.array(fields) || fields != TOKEN_FIELDS || !cursor.natural(token)) {
        return false;
    }
    if (!cursor.nil() || !cursor.array(top) || top != 0) {
        return false;
    }
    tokens.push_back(token);
    return true;
}

bool read_plain(Cursor& cursor, Row& row, std::vector<uint32_t>& tokens) {
    uint32_t fields = 0, num_tokens = 0, cached = 0, prompt = 0;
    if (!cursor.array(fields) || fields != CHUNK_FIELDS || !cursor.text(row.id) ||
        !cursor.array(num_tokens) || num_tokens == 0) {
        return false;
    }
    row.first_token = tokens.size();
    row.num_tokens = num_tokens;
    for (uint32_t k = 0; k < num_tokens; ++k) {
        if (!read_token(cursor, tokens)) {
            return false;
        }
    }
    if (!cursor.real(row.step_time_s)) {
        return false;
    }
    const size_t at_cached = cursor.at();
    if (!cursor.nil()) { // how much of the prompt was cached: of interest with the first token only
        cursor.back_to(at_cached);
        if (!cursor.natural(cached)) {
            return false;
        }
    }
    return cursor.nil() && cursor.nil() && // finish, error
           cursor.array(prompt) && prompt == 0 && cursor.nil();
}

} // namespace

bool read_chunks(std::string_view body, ChunkFrame& frame) {
    frame.rows.clear();
    frame.tokens.clear();
    Cursor cursor(body);
    uint32_t num_rows = 0;
    if (!cursor.head(HEAD) || !cursor.array(num_rows)) {
        return false;
    }
    for (uint32_t k = 0; k < num_rows; ++k) {
        const size_t start = cursor.at(), tokens = frame.tokens.size();
        Row row;
        row.plain = read_plain(cursor, row, frame.tokens);
        if (!row.plain) {
            frame.tokens.resize(tokens);
            cursor.back_to(start);
            if (!cursor.skip()) {
                return false;
            }
        }
        row.raw = body.substr(start, cursor.at() - start);
        frame.rows.push_back(row);
    }
    return cursor.at() == body.size();
}

std::string chunks_of(const std::vector<std::string_view>& rows) {
    std::string body(HEAD);
    body.push_back(static_cast<char>(ARRAY32));
    for (int shift = 24; shift >= 0; shift -= 8) {
        body.push_back(static_cast<char>(rows.size() >> shift & 0xFF));
    }
    for (const std::string_view row : rows) {
        body.append(row);
    }
    return body;
}

} // namespace penstock::lanes
