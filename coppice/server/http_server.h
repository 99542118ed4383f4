// HTTP around a Service: sockets, limits and time-outs. The one file that includes cpp-httplib is
// http_server.cpp.
//
// cpp-httplib parses and writes HTTP; what it does not bound is bounded here, below it: a request's
// head and body in bytes and in time, the number of connections, and answers that nobody reads. A
// connection that is idle gives way when there are too many. Plain HTTP/1.1; TLS is a proxy's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coppice/server/service.h"

namespace coppice {

struct HttpConfig {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any that is free
  int64_t max_body_bytes = 4 << 20;
  int64_t max_connections = 512;  // fewer where the process may open fewer files
  int64_t idle_seconds = 60;      // until a connection without a request is closed
  int64_t head_seconds = 10;      // for a request's head, from its first byte
  int64_t body_seconds = 60;      // for its body
  int64_t write_seconds = 30;     // until a client that reads nothing is given up
};

class HttpServer final {
 public:
  // `service` must outlive it.
  HttpServer(const HttpConfig& config, Service& service);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Takes the port; returns it. Throws kInvalidArgument: taken, or no such address.
  int bind();
  // Serves until stop(); then returns when the last answer is out. REQUIRES: bind().
  void serve();
  // No new connections; idle ones close, others after their answer. Any thread may call it.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice
