#include "coppice/server/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace coppice {
namespace {

constexpr int64_t kMaxHeadBytes = 64 << 10;
constexpr int64_t kMaxLingerBytes = 16 << 20;
constexpr std::chrono::milliseconds kLinger{1500};
constexpr std::chrono::milliseconds kRoomPatience{50};

int milliseconds_until(Connection::Clock::time_point until) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - Connection::Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

}  // namespace

Connection::Connection(int socket, const HttpConfig& config) : config_(config), socket_(socket) {
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Connection::~Connection() { ::close(socket_); }

bool Connection::wait(short events, Clock::time_point until) const {
  while (true) {
    pollfd entry{.fd = socket_, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, milliseconds_until(until));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

bool Connection::wait_for_request() {
  if (begin_ < end_) return true;
  read_until_ = Clock::now() + std::chrono::seconds(config_.idle_seconds);
  read_left_ = kMaxHeadBytes;
  return fill() > 0;
}

void Connection::begin_head() {
  read_until_ = Clock::now() + std::chrono::seconds(config_.head_seconds);
  read_left_ = kMaxHeadBytes;
}

// Chunk sizes stand beside a body's bytes, at worst six for one.
void Connection::begin_body() {
  read_until_ = Clock::now() + std::chrono::seconds(config_.body_seconds);
  read_left_ = kMaxHeadBytes + 8 * config_.max_body_bytes;
}

int64_t Connection::fill() {
  if (read_left_ <= 0 || !wait(POLLIN, read_until_)) return -1;
  const auto most = std::min<int64_t>(read_left_, sizeof buffer_);
  ssize_t got = 0;
  do {
    got = ::recv(socket_, buffer_, static_cast<std::size_t>(most), 0);
  } while (got < 0 && errno == EINTR);
  begin_ = 0;
  end_ = got > 0 ? static_cast<std::size_t>(got) : 0;
  read_left_ -= std::max<ssize_t>(0, got);
  return got;
}

int64_t Connection::read(char* data, std::size_t size) {
  if (begin_ == end_) {
    const int64_t got = fill();
    if (got <= 0) return got;
  }
  const std::size_t count = std::min(size, end_ - begin_);
  std::memcpy(data, buffer_ + begin_, count);
  begin_ += count;
  return static_cast<int64_t>(count);
}

int64_t Connection::write(const char* data, std::size_t size) {
  const auto until = Clock::now() + std::chrono::seconds(config_.write_seconds);
  std::size_t sent = 0;
  while (sent < size) {
    if (!wait(POLLOUT, until)) return -1;
    const ssize_t count = ::send(socket_, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno != EINTR && errno != EAGAIN) return -1;
    sent += static_cast<std::size_t>(std::max<ssize_t>(0, count));
  }
  return static_cast<int64_t>(size);
}

bool Connection::readable() const { return begin_ < end_ || wait(POLLIN, read_until_); }

bool Connection::writable() const {
  return !gone() && wait(POLLOUT, Clock::now() + std::chrono::seconds(config_.write_seconds));
}

bool Connection::gone() const {
  pollfd entry{.fd = socket_, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Connection::linger() {
  ::shutdown(socket_, SHUT_WR);
  read_until_ = Clock::now() + kLinger;
  read_left_ = kMaxLingerBytes;
  while (fill() > 0) {
  }
}

bool ConnectionList::reserve() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && count_ >= most_) {
    close_longest_idle();
    changed_.wait_for(lock, kRoomPatience);
  }
  if (!stopping_) ++count_;
  return !stopping_;
}

void ConnectionList::release() {
  const std::lock_guard lock(mutex_);
  --count_;
  changed_.notify_all();
}

void ConnectionList::add(Connection& connection) {
  const std::lock_guard lock(mutex_);
  all_.insert(&connection);
}

void ConnectionList::remove(Connection& connection) {
  const std::lock_guard lock(mutex_);
  all_.erase(&connection);
}

bool ConnectionList::set_idle(Connection& connection, bool idle) {
  const std::lock_guard lock(mutex_);
  connection.idle = idle;
  connection.idle_since = Connection::Clock::now();
  return !stopping_;
}

void ConnectionList::close_longest_idle() {
  Connection* longest = nullptr;
  for (Connection* connection : all_) {
    if (!connection->idle) continue;
    if (longest == nullptr || connection->idle_since < longest->idle_since) longest = connection;
  }
  if (longest == nullptr) return;
  longest->idle = false;  // once
  ::shutdown(longest->socket(), SHUT_RDWR);
}

void ConnectionList::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  for (Connection* connection : all_) {
    if (connection->idle) ::shutdown(connection->socket(), SHUT_RDWR);
  }
  changed_.notify_all();
}

void ConnectionList::wait_empty() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return count_ == 0; });
}

}  // namespace coppice
