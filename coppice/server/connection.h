// One client's socket with limits in bytes and time, and the list of all of them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

#include "coppice/server/http_server.h"

namespace coppice {

// Reads and writes with deadlines. Its own thread uses it; close_now() and the atomics of the
// registry are the exception.
class Connection final {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(int socket, const HttpConfig& config);
  ~Connection();  // closes
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Waits for a request's first byte. False: the client is gone, or was idle for too long.
  bool wait_for_request();
  void begin_head();  // limits of a head hold from here
  void begin_body();  // those of a body

  // As ::read and ::write: 0 at the end, -1 where a limit was passed or the socket failed.
  int64_t read(char* data, std::size_t size);
  int64_t write(const char* data, std::size_t size);
  bool readable() const;  // within the limits
  bool writable() const;
  // The client has closed its side: nobody waits for the answer. One that closes its sending half
  // alone counts as gone.
  bool gone() const;
  // Reads what is still coming for a moment, so that the client sees the answer before the end.
  void linger();

  int socket() const { return socket_; }

  // Of the registry: since when the connection waits for a request; nothing while it has one.
  bool idle = true;
  Clock::time_point idle_since = Clock::now();

 private:
  bool wait(short events, Clock::time_point until) const;
  int64_t fill();

  const HttpConfig& config_;
  int socket_;
  Clock::time_point read_until_;
  int64_t read_left_ = 0;  // bytes that may still be read
  char buffer_[16384];
  std::size_t begin_ = 0, end_ = 0;  // of what is buffered
};

// All open connections, at most a fixed number.
class ConnectionList final {
 public:
  explicit ConnectionList(int64_t most) : most_(most) {}

  // Waits until there is room for one more, closing the longest idle one if there is none. False
  // after stop().
  bool reserve();
  void release();
  void add(Connection& connection);
  void remove(Connection& connection);
  // False after stop(): the connection shall end.
  bool set_idle(Connection& connection, bool idle);
  void stop();  // closes idle ones
  void wait_empty();

 private:
  void close_longest_idle();

  const int64_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Connection*> all_;
  int64_t count_ = 0;
  bool stopping_ = false;
};

}  // namespace coppice
