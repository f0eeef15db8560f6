#include "sandbox/outbox.h"

#include <cerrno>
#include <sys/socket.h>

namespace penstock::sandbox {

bool Outbox::flush() {
    while (!frames_.empty()) {
        const int error = send_frame(socket_, frames_.front(), MSG_DONTWAIT);
        if (error == EAGAIN || error == ENOBUFS)
            return true;
        if (error != 0)
            return false;
        frames_.pop_front();
    }
    return true;
}

} // namespace penstock::sandbox
