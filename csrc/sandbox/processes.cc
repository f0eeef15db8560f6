#include "sandbox/processes.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/stat.h>

#include "sandbox/directory.h"
#include "sandbox/system.h"

namespace penstock::sandbox {
namespace {

// Rounds of signal_descendants: each ends all processes that the one before saw.
constexpr int kMaxRounds = 100;
// A killed process ends when it next leaves the kernel, after its memory is freed.
constexpr int kWaitUs = 500, kMaxWaitUs = 1'000'000;

bool read_process(int proc_folder, const char* name, Process& process) {
    char path[64], text[512];
    snprintf(path, sizeof path, "%s/stat", name);
    const Descriptor file(openat(proc_folder, path, O_RDONLY | O_CLOEXEC));
    const ssize_t size = file ? read(file.get(), text, sizeof text - 1) : -1;
    if (size <= 0)
        return false;
    text[size] = '\0';
    // The program's name may contain spaces and parentheses: the fields follow the last one.
    const char* rest = strrchr(text, ')');
    char state = 0;
    int parent = 0;
    long threads = 0;
    if (!rest || sscanf(rest + 1,
                        " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                        "%*d %ld",
                        &state, &parent, &threads) != 3)
        return false;
    process = {atoi(name), parent, state == 'Z' || state == 'X', threads};
    return true;
}

bool contains(const std::vector<pid_t>& pids, pid_t pid) {
    return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

} // namespace

std::vector<Process> list_processes(int proc_folder) {
    std::vector<Process> processes;
    each_name(proc_folder, [&](const char* name) {
        Process process;
        if (name[0] >= '1' && name[0] <= '9' && read_process(proc_folder, name, process))
            processes.push_back(process);
        return true;
    });
    return processes;
}

uint64_t memory_of(int proc_folder, const std::vector<pid_t>& processes) {
    uint64_t pages = 0;
    for (const pid_t pid : processes) {
        char path[64], text[256];
        snprintf(path, sizeof path, "%d/statm", pid);
        const Descriptor file(openat(proc_folder, path, O_RDONLY | O_CLOEXEC));
        const ssize_t size = file ? read(file.get(), text, sizeof text - 1) : -1;
        if (size <= 0)
            continue;
        text[size] = '\0';
        unsigned long total = 0, resident = 0, shared = 0;
        if (sscanf(text, "%lu %lu %lu", &total, &resident, &shared) == 3 && resident > shared)
            pages += resident - shared;
    }
    return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::vector<pid_t> descendants(int proc_folder, pid_t ancestor, const std::vector<pid_t>& except) {
    const std::vector<Process> processes = list_processes(proc_folder);
    std::vector<pid_t> found;
    std::vector<pid_t> parents{ancestor};
    while (!parents.empty()) {
        const pid_t parent = parents.back();
        parents.pop_back();
        for (const Process& process : processes) {
            if (process.parent != parent || contains(except, process.pid))
                continue;
            parents.push_back(process.pid);
            if (!process.zombie)
                found.push_back(process.pid);
        }
    }
    return found;
}

size_t count_own_threads(int proc_folder) {
    size_t count = 0;
    for (const Process& process : list_processes(proc_folder)) {
        struct stat status;
        const std::string name = std::to_string(process.pid) + "/task";
        if (fstatat(proc_folder, name.c_str(), &status, 0) == 0 && status.st_uid == geteuid())
            count += static_cast<size_t>(process.threads);
    }
    return count;
}

void signal_descendants(int proc_folder, pid_t ancestor, const std::vector<pid_t>& except,
                        int number) {
    if (number != SIGKILL) {
        for (const pid_t pid : descendants(proc_folder, ancestor, except))
            kill(pid, number);
        return;
    }
    std::vector<pid_t> stopped;
    for (int round = 0; round < kMaxRounds; ++round) {
        bool found_more = false;
        for (const pid_t pid : descendants(proc_folder, ancestor, except)) {
            if (contains(stopped, pid))
                continue;
            kill(pid, SIGSTOP);
            stopped.push_back(pid);
            found_more = true;
        }
        if (!found_more)
            break;
    }
    for (const pid_t pid : stopped)
        kill(pid, SIGKILL);
    // A process whose parent ended while /proc was read was in none of the lists above.
    for (int waited_us = 0; waited_us < kMaxWaitUs; waited_us += kWaitUs) {
        const std::vector<pid_t> left = descendants(proc_folder, ancestor, except);
        if (left.empty())
            break;
        for (const pid_t pid : left)
            kill(pid, SIGKILL);
        usleep(kWaitUs);
    }
}

void wait_for_end(int proc_folder, pid_t ancestor, const std::vector<pid_t>& except) {
    for (int waited_us = 0; waited_us < kMaxWaitUs; waited_us += kWaitUs) {
        if (descendants(proc_folder, ancestor, except).empty())
            return;
        usleep(kWaitUs);
    }
}

} // namespace penstock::sandbox
