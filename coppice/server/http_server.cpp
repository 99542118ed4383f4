#include "coppice/server/http_server.h"

#include <httplib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/server/connection.h"

namespace coppice {
namespace {

constexpr int kBacklog = 511;
constexpr int64_t kSpareFiles = 64;  // beside connections

// The connection that this thread serves.
thread_local Connection* current = nullptr;

int64_t most_connections(int64_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const auto files = static_cast<int64_t>(limit.rlim_cur);
  return std::clamp<int64_t>(files - kSpareFiles, 8, wanted);
}

class ConnectionStream final : public httplib::Stream {
 public:
  explicit ConnectionStream(Connection& connection) : connection_(connection) {}
  bool is_readable() const override { return connection_.readable(); }
  bool is_writable() const override { return connection_.writable(); }
  ssize_t read(char* data, size_t size) override { return connection_.read(data, size); }
  ssize_t write(const char* data, size_t size) override { return connection_.write(data, size); }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return connection_.socket(); }

 private:
  Connection& connection_;
};

// A thread for each connection.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(ConnectionList& list) : list_(list) {}

  void enqueue(std::function<void()> serve) override {
    while (list_.reserve()) {
      try {
        std::thread([this, serve] {
          serve();
          list_.release();
        }).detach();
        return;
      } catch (const std::system_error&) {  // no thread to be had: others will end
        list_.release();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
    serve();  // stopping: closes the socket
  }

  void shutdown() override { list_.wait_empty(); }

 private:
  ConnectionList& list_;
};

ApiCall make_call(const httplib::Request& request) {
  return {.method = request.method,
          .path = request.path,
          .content_type = request.get_header_value("Content-Type"),
          .content_encoding = request.get_header_value("Content-Encoding"),
          .authorization = request.get_header_value("Authorization"),
          .host = request.get_header_value("Host"),
          .body = {},
          .client_gone = [] { return current->gone(); }};
}

}  // namespace

class HttpServer::Impl final : public httplib::Server {
 public:
  Impl(const HttpConfig& config, Service& service)
      : config_(config), service_(service), list_(most_connections(config.max_connections)) {
    new_task_queue = [this] { return new ConnectionThreads(list_); };
    set_keep_alive_timeout(config.idle_seconds);  // what answers say of it
    set_keep_alive_max_count(1000);
    set_payload_max_length(static_cast<size_t>(config.max_body_bytes));
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      return route(request, response);
    });
    for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize",
                             "/v1/sessions", "/v1/sessions/.+"}) {
      Post(path, [this](const httplib::Request& request, httplib::Response& response,
                        const httplib::ContentReader& reader) { post(request, response, reader); });
    }
    set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty()) return;
      leave_open_ = false;
      response.set_content(service_.error_reply(response.status, "malformed HTTP request").body,
                           "application/json");
    });
    set_exception_handler(
        [this](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          refuse(response, 500, "the server could not answer this request", "internal_error");
        });
    set_expect_100_continue_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          if (!too_large(request)) return 100;
          refuse_size(response);
          return 413;
        });
  }

  int bind() {
    int port = config_.port;
    if (port == 0) {
      port = bind_to_any_port(config_.host);
    } else if (!bind_to_port(config_.host, port)) {
      port = -1;
    }
    if (port <= 0) {
      fail_argument(
          "cannot listen on {}, port {}: the port is taken or the address is not this "
          "machine's",
          config_.host, config_.port);
    }
    ::listen(svr_sock_, kBacklog);
    return port;
  }

  void end() {
    list_.stop();
    httplib::Server::stop();
    const socket_t not_yet_served = svr_sock_;
    if (not_yet_served >= 0) ::shutdown(not_yet_served, SHUT_RDWR);
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket, config_);
    current = &connection;
    list_.add(connection);
    ConnectionStream stream(connection);
    bool lingers = false;
    while (list_.set_idle(connection, true) && connection.wait_for_request()) {
      connection.begin_head();
      leave_open_ = true;
      bool client_closes = false;
      const auto on_head = [&](httplib::Request& request) {
        request.ranges.clear();                    // parts of an answer are not served
        request.headers.erase("Accept-Encoding");  // nor compressed ones
        list_.set_idle(connection, false);
        connection.begin_body();
      };
      bool done = false;
      try {
        done = process_request(stream, false, client_closes, on_head);
      } catch (const std::exception& error) {
        log_warning("a connection ended: {}", error.what());
      }
      lingers = !leave_open_;
      if (!done || client_closes || !leave_open_) break;
    }
    if (lingers && !connection.gone()) connection.linger();
    list_.remove(connection);
    current = nullptr;
    return true;
  }

  bool too_large(const httplib::Request& request) const {
    const std::string length = request.get_header_value("Content-Length");
    if (length.empty()) return false;
    return length.size() > 18 || std::strtoll(length.c_str(), nullptr, 10) > config_.max_body_bytes;
  }

  // The body is not read: the connection cannot be used again.
  void refuse(httplib::Response& response, int status, const std::string& message,
              const std::string& code) {
    leave_open_ = false;
    response.status = status;
    response.set_header("Connection", "close");
    response.set_content(service_.error_reply(status, message, code).body, "application/json");
  }

  HandlerResponse route(const httplib::Request& request, httplib::Response& response) {
    const ApiCall call = make_call(request);
    if (std::optional<Reply> reply = service_.refuse_early(call)) {
      const bool has_body =
          request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
      if (has_body) {
        leave_open_ = false;
        response.set_header("Connection", "close");
      }
      send(std::move(*reply), request, response);
      return HandlerResponse::Handled;
    }
    if (request.method != "POST") {
      send(service_.handle(call), request, response);
      return HandlerResponse::Handled;
    }
    if (too_large(request)) {
      refuse_size(response);
      return HandlerResponse::Handled;
    }
    if (!request.has_header("Content-Length") && !request.has_header("Transfer-Encoding")) {
      refuse(response, 411, "a request with a body tells its Content-Length", "length_required");
      return HandlerResponse::Handled;
    }
    return HandlerResponse::Unhandled;
  }

  void send(Reply reply, const httplib::Request& request, httplib::Response& response) {
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    if (!reply.stream) {
      response.set_content(reply.body, reply.content_type);
      return;
    }
    const auto provide = [stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
      bool alive = true;
      stream([&](std::string_view bytes) {
        alive = alive && !current->gone() && sink.write(bytes.data(), bytes.size());
        return alive;
      });
      if (alive) sink.done();
      return alive;
    };
    if (request.version == "HTTP/1.0") {  // the end of the connection is the end of the answer
      leave_open_ = false;
      response.set_content_provider(reply.content_type, provide);
    } else {
      response.set_chunked_content_provider(reply.content_type, provide);
    }
  }

  void refuse_size(httplib::Response& response) {
    refuse(response, 413,
           fmt::format("the request body is larger than {} bytes", config_.max_body_bytes),
           "request_too_large");
  }

  void post(const httplib::Request& request, httplib::Response& response,
            const httplib::ContentReader& reader) {
    ApiCall call = make_call(request);
    bool fits = true;
    const bool complete = reader([&](const char* data, size_t size) {
      fits = call.body.size() + size <= static_cast<size_t>(config_.max_body_bytes);
      if (fits) call.body.append(data, size);
      return fits;
    });
    if (!fits) return refuse_size(response);
    if (!complete) {
      return refuse(response, 400, "the request body did not arrive whole", "incomplete_body");
    }
    send(service_.handle(call), request, response);
  }

  const HttpConfig config_;
  Service& service_;
  ConnectionList list_;
  // Whether the connection may take another request after this one.
  static thread_local bool leave_open_;
};

thread_local bool HttpServer::Impl::leave_open_ = true;

HttpServer::HttpServer(const HttpConfig& config, Service& service)
    : impl_(std::make_unique<Impl>(config, service)) {}
HttpServer::~HttpServer() = default;
int HttpServer::bind() { return impl_->bind(); }
void HttpServer::serve() { impl_->listen_after_bind(); }
void HttpServer::stop() { impl_->end(); }

}  // namespace coppice
