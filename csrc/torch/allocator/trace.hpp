// trace.hpp - what a program asks of its allocator, written to a file event by event,
// and asked again of whatever allocator PyTorch has (docs/traces.md has the format).
//
// A file is a line of JSON, then records, then what the program was seen to be. Numbers
// are LEB128. A block is named by how many blocks were allocated since.
#pragma once
#include "torch/allocator/history.hpp"
#include "torch/allocator/sites.hpp"
#include "torch/base/python.hpp"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace oomph_torch
{

// The low three bits of a record's first byte; two bits above are an allocation's
// phase.
enum class Record : uint8_t {
    END,       // nothing
    ALLOC,     // stream, bytes, site
    FREE,      // block
    REQUESTED, // block: freed, but other streams use it
    COMPLETED, // block: they no longer do
    MARK,      // which
    DEVICE,    // of the records that follow
};

enum class Mark : uint8_t { NONE, STEP_ENDS, OPTIMIZER_BEGINS, OPTIMIZER_ENDS };

enum class Phase : uint8_t { OTHER, BACKWARD, OPTIMIZER };

inline constexpr int PHASE_SHIFT = 3;
inline constexpr uint8_t KIND_MASK = 7;

// Writes events as PyTorch reports them.
class Tracer
{
    static constexpr size_t BUFFER = 1 << 16;

    struct Block {
        uint64_t number;
        bool waits;
    };

    std::mutex mutex_; // guards all
    int file_;
    bool failed_ = false;
    std::string buffer_;
    size_t last_ = std::string::npos; // where the last record begins, if it is buffered
    size_t last_addr_ = 0;
    uint64_t count_ = 0;  // of blocks
    uint64_t events_ = 0; // of records
    int device_ = 0;
    bool optimizes_ = false;
    std::unordered_map<size_t, Block> blocks_; // by address
    std::unordered_map<uint64_t, uint64_t> streams_;

  public:
    explicit Tracer(int file) : file_(file)
    {
        buffer_.reserve(BUFFER + 64);
        streams_[0] = 0;
    }

    void hear(const TraceEntry &entry)
    {
        const bool is_alloc = entry.action_ == TraceEntry::ALLOC;
        const bool is_request = entry.action_ == TraceEntry::FREE_REQUESTED;
        if (!is_alloc && !is_request && entry.action_ != TraceEntry::FREE_COMPLETED)
            return;
        const bool is_backward =
            is_alloc && torch::autograd::get_current_node() != nullptr;
        const oomph_site_t site = is_alloc ? Sites::of_request(entry.size_) : 0;
        std::lock_guard<std::mutex> guard(mutex_);
        if (file_ < 0)
            return;
        turn_to(entry.device_);
        const auto addr = static_cast<size_t>(entry.addr_);
        if (is_alloc)
            add_alloc(addr, entry, is_backward, site);
        else
            add_free(addr, is_request);
        if (buffer_.size() >= BUFFER)
            flush();
    }

    void mark(Mark which)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        optimizes_ =
            which == Mark::OPTIMIZER_BEGINS || (optimizes_ && which == Mark::STEP_ENDS);
        begin(Record::MARK);
        put(static_cast<uint64_t>(which));
    }

    // Writes the end. Gives how many events there were, or -1 if a write failed.
    int64_t end()
    {
        std::lock_guard<std::mutex> guard(mutex_);
        begin(Record::END);
        flush();
        file_ = -1;
        return failed_ ? -1 : static_cast<int64_t>(events_);
    }

  private:
    /* ---- The caller holds mutex_ */

    void add_alloc(size_t addr, const TraceEntry &entry, bool is_backward,
                   oomph_site_t site)
    {
        const auto handle = reinterpret_cast<uint64_t>(entry.stream_);
        const Phase phase = is_backward  ? Phase::BACKWARD
                            : optimizes_ ? Phase::OPTIMIZER
                                         : Phase::OTHER;
        begin(Record::ALLOC, phase);
        put(streams_.try_emplace(handle, streams_.size()).first->second);
        put(static_cast<uint64_t>(entry.size_));
        put(site);
        blocks_[addr] = {count_++, false};
    }

    void add_free(size_t addr, bool is_request)
    {
        auto found = blocks_.find(addr);
        if (found == blocks_.end()) // it was there before
            return;
        if (!is_request && !found->second.waits)
            return;
        if (is_request) {
            begin(Record::REQUESTED);
            put(count_ - found->second.number);
            found->second.waits = true;
            last_addr_ = addr;
            return;
        }
        if (last_ != std::string::npos && last_addr_ == addr) {
            buffer_[last_] = static_cast<char>(Record::FREE);
        } else {
            begin(Record::COMPLETED);
            put(count_ - found->second.number);
        }
        last_addr_ = 0;
        blocks_.erase(found);
    }

    void turn_to(int device)
    {
        if (device == device_)
            return;
        device_ = device;
        begin(Record::DEVICE);
        put(static_cast<uint64_t>(device));
    }

    void begin(Record kind, Phase phase = Phase::OTHER)
    {
        events_++;
        last_ = buffer_.size();
        last_addr_ = 0;
        buffer_.push_back(static_cast<char>(
            static_cast<unsigned>(kind) | static_cast<unsigned>(phase) << PHASE_SHIFT));
    }

    void put(uint64_t number)
    {
        for (; number >= 0x80; number >>= 7)
            buffer_.push_back(static_cast<char>(number | 0x80));
        buffer_.push_back(static_cast<char>(number));
    }

    void flush()
    {
        for (size_t done = 0; done < buffer_.size() && !failed_;) {
            ssize_t wrote = write(file_, buffer_.data() + done, buffer_.size() - done);
            failed_ = wrote <= 0;
            done += wrote > 0 ? static_cast<size_t>(wrote) : 0;
        }
        buffer_.clear();
        last_ = std::string::npos;
    }
};

inline Tracer *tracer; // lives as long as the process: trackers are never detached

// Asks PyTorch's allocator for what a trace has.
class Player
{
    static constexpr size_t STREAMS_MAX = 4096;

    const uint8_t *at_, *end_;
    std::vector<void *> blocks_;
    std::vector<cudaStream_t> streams_{nullptr};
    int device_ = 0;

  public:
    uint64_t events = 0;

    Player(const uint8_t *begin, size_t bytes) : at_(begin), end_(begin + bytes)
    {
    }

    // Calls `mark` with each mark, and ends where that says false. Throws where the
    // trace is damaged.
    template <typename Function> void play(Function mark)
    {
        c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(device_));
        for (;;) {
            TORCH_CHECK_VALUE(at_ < end_, "it is cut short after event ", events);
            const auto kind = static_cast<Record>(*at_++ & KIND_MASK);
            if (kind == Record::END)
                break;
            events++;
            if (kind == Record::ALLOC)
                alloc();
            else if (kind == Record::FREE || kind == Record::COMPLETED)
                give(number());
            else if (kind == Record::REQUESTED)
                number();
            else if (kind == Record::MARK) {
                if (!mark(number()))
                    return;
            } else if (kind == Record::DEVICE)
                turn_to(guard);
            else
                TORCH_CHECK_VALUE(false, "a record is of no kind: event ", events);
        }
    }

  private:
    uint64_t number()
    {
        uint64_t found = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            TORCH_CHECK_VALUE(at_ < end_, "it is cut short after event ", events);
            const uint8_t byte = *at_++;
            found |= static_cast<uint64_t>(byte & 0x7F) << shift;
            if (byte < 0x80)
                return found;
        }
        TORCH_CHECK_VALUE(false, "a number has too many bytes: event ", events);
    }

    void alloc()
    {
        const uint64_t stream = number(), bytes = number();
        number(); // the site
        TORCH_CHECK_VALUE(stream <= streams_.size() && stream < STREAMS_MAX,
                          "a stream comes before its time: event ", events);
        if (stream == streams_.size()) {
            streams_.push_back(nullptr);
            C10_CUDA_CHECK(
                cudaStreamCreateWithFlags(&streams_.back(), cudaStreamNonBlocking));
        }
        blocks_.push_back(native::raw_alloc_with_stream(bytes, streams_[stream]));
    }

    void give(uint64_t ago)
    {
        TORCH_CHECK_VALUE(ago > 0 && ago <= blocks_.size() &&
                              blocks_[blocks_.size() - ago] != nullptr,
                          "what is not there is freed: event ", events);
        void *&block = blocks_[blocks_.size() - ago];
        native::raw_delete(block);
        block = nullptr;
    }

    void turn_to(c10::cuda::CUDAGuard &guard)
    {
        const uint64_t device = number();
        TORCH_CHECK_VALUE(device < static_cast<uint64_t>(c10::cuda::device_count()),
                          "there is no such device: event ", events);
        device_ = static_cast<int>(device);
        guard.set_index(static_cast<DeviceIndex>(device_));
    }
};

/* ---- For Python */

// The file's descriptor, which stays the caller's. CUDA is in use.
inline PyObject *begin_trace(PyObject *, PyObject *file)
{
    const long number = PyLong_AsLong(file);
    if (PyErr_Occurred() != nullptr || !find_core())
        return nullptr;
    return or_raise([&] {
        tracer = new Tracer(static_cast<int>(number));
        native::attachAllocatorTraceTracker(
            [](const TraceEntry &entry) { tracer->hear(entry); });
        return Py_NewRef(Py_None);
    });
}

inline PyObject *mark_trace(PyObject *, PyObject *which)
{
    const long number = PyLong_AsLong(which);
    if (PyErr_Occurred() == nullptr && tracer != nullptr)
        tracer->mark(static_cast<Mark>(number));
    return PyErr_Occurred() != nullptr ? nullptr : Py_NewRef(Py_None);
}

inline PyObject *end_trace(PyObject *, PyObject *)
{
    return PyLong_FromLongLong(tracer != nullptr ? tracer->end() : 0);
}

// The records of a trace, and a callable for its marks. Gives the number of events, and
// the seconds that they took.
inline PyObject *play_trace(PyObject *, PyObject *arguments)
{
    PyObject *records = nullptr, *on_mark = nullptr;
    if (!PyArg_ParseTuple(arguments, "SO", &records, &on_mark))
        return nullptr;
    const void *first = PyBytes_AsString(records);
    Player player(static_cast<const uint8_t *>(first),
                  static_cast<size_t>(PyBytes_Size(records)));
    return or_raise([&]() -> PyObject * {
        const auto began = std::chrono::steady_clock::now();
        player.play([&](uint64_t which) {
            PyObject *result = PyObject_CallFunction(
                on_mark, "K", static_cast<unsigned long long>(which));
            Py_XDECREF(result);
            return result != nullptr;
        });
        const std::chrono::duration<double> seconds =
            std::chrono::steady_clock::now() - began;
        if (PyErr_Occurred() != nullptr)
            return nullptr;
        return Py_BuildValue("Kd", static_cast<unsigned long long>(player.events),
                             seconds.count());
    });
}

} // namespace oomph_torch
