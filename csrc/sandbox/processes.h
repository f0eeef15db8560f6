// The processes of a container, read from /proc.
#pragma once

#include <cstdint>
#include <sys/types.h>
#include <vector>

namespace penstock::sandbox {

struct Process {
    pid_t pid;
    pid_t parent;
    bool zombie;
    long threads;
};

std::vector<Process> list_processes(int proc_folder);

// The living processes below `ancestor`, without those below one of `except`.
std::vector<pid_t> descendants(int proc_folder, pid_t ancestor, const std::vector<pid_t>& except);

// The bytes of memory that the processes do not share with files or with each other.
uint64_t memory_of(int proc_folder, const std::vector<pid_t>& processes);

// The threads of all processes of this process's user.
size_t count_own_threads(int proc_folder);

// Sends a signal to all processes below `ancestor`. SIGKILL stops them first, so that none forks
// away, and waits until none is left.
void signal_descendants(int proc_folder, pid_t ancestor, const std::vector<pid_t>& except,
                        int number);

// Waits, at most a second, until killed processes have ended.
void wait_for_end(int proc_folder, pid_t ancestor, const std::vector<pid_t>& except);

} // namespace penstock::sandbox
