#!/usr/bin/env ruby
# frozen_string_literal: true

# A worker: ruby worker.rb. It needs nothing but Ruby, 3.0 or newer.
require "json"
require "net/http"
require "socket"
require "timeout"

$stdout.sync = true # A line is seen when it is written, also in a pipe.

BASE = "#{ENV.fetch('OJS_URL', 'http://127.0.0.1:8080')}/ojs/v1/workers/"
HEADERS = { "Content-Type" => "application/json" }
HEADERS["Authorization"] = "Bearer #{ENV['OJS_API_KEY']}" if ENV["OJS_API_KEY"]
QUEUES = ENV.fetch("OJS_QUEUES", "default").split(",")
LEASE_MS = Integer(ENV.fetch("OJS_LEASE_MS", "30000"))
WAIT_MS = 5000 # How long a FETCH waits for a job, and an idle worker goes on after it was told to stop.
SLOTS = 4 # Jobs at a time.
WORKER = "ruby-#{Socket.gethostname}-#{Process.pid}"

# Something that happens once, for which threads wait.
class Event
  def initialize
    @queue = Queue.new
  end

  # Closing a queue wakes all who wait for it, and may be done in the handler of a signal.
  def set = @queue.close

  def set? = @queue.closed?

  # True when it has happened, false when the time was over first.
  def wait(seconds)
    Timeout.timeout(seconds) { @queue.pop }
    true
  rescue Timeout::Error
    set?
  end
end

# A failure that another attempt would only repeat.
class Permanent < StandardError
  attr_reader :kind

  def initialize(kind, message)
    super(message)
    @kind = kind
  end
end

# What the server said no to.
class Refusal < StandardError; end

STOPPING = Event.new # No job is fetched any more.
STOPPED = Event.new # No job runs any more.
RUNNING = {} # Id of a job: the event that says that it was lost.
LOCK = Mutex.new

SEND = ->(job, _lost) { { sent: job["args"] } }

HANDLERS = {
  "greet" => ->(job, _lost) { { greeting: "hello, #{job['args'][0]}" } },

  # What takes long looks now and then whether the job is still this worker's.
  "nap" => ->(job, lost) { { slept: !lost.wait(job["args"][0]) } },

  "charge" => lambda do |job, _lost|
    raise Permanent.new("invalid_amount", "the amount must be positive") unless job["args"][0].positive?

    # With the job's id as its key, a payment is made once, however often the job runs.
    { charged: job["args"][0], key: job["id"] }
  end,

  # The producers of the examples enqueue these.
  "receipt.send" => SEND, "receipt.remind" => SEND, "welcome.send" => SEND
}.freeze

# Posts, and asks again while the server is away or has no room, which changes nothing about ACK and NACK with a lease.
def call(what, body, tries: 1)
  uri = URI(BASE + what)
  post = Net::HTTP::Post.new(uri, HEADERS)
  post.body = JSON.generate({ worker_id: WORKER, **body })
  loop do
    tries -= 1
    pause = 1
    begin
      answer = Net::HTTP.start(uri.host, uri.port, use_ssl: uri.scheme == "https", read_timeout: WAIT_MS / 1000 + 30) do |http|
        http.max_retries = 0
        http.request(post)
      end
      return JSON.parse(answer.body) if answer.is_a?(Net::HTTPSuccess)

      raise Refusal, "#{what}: #{answer.code} #{answer.body}" if !%w[429 503].include?(answer.code) || tries <= 0

      pause = Float(answer["Retry-After"] || 1)
    rescue SystemCallError, IOError, SocketError, Timeout::Error
      raise if tries <= 0
    end
    sleep pause
  end
end

def work(job)
  lost = Event.new
  LOCK.synchronize { RUNNING[job["id"]] = lost }
  finish = { job_id: job["id"], lease: job["lease"] }
  begin
    handler = HANDLERS.fetch(job["type"]) { |type| raise NameError, "no handler for #{type}" }
    verb, finish[:result] = "ack", handler.call(job, lost)
  rescue Permanent => e
    verb, finish[:error] = "nack", { type: e.kind, message: e.message, retryable: false }
  rescue StandardError => e
    verb, finish[:error] = "nack", { type: e.class.name, message: e.message }
  end
  return puts("lost #{job['type']} #{job['id']}") if lost.set?

  call(verb, finish, tries: 10)
  puts verb == "ack" ? "done #{job['type']} #{job['id']}" : "failed #{job['type']} #{job['id']}: #{finish[:error][:message]}"
rescue StandardError => e
  warn e.message # 409: the job was taken back; another worker has it.
ensure
  LOCK.synchronize { RUNNING.delete(job["id"]) }
end

def slot
  until STOPPING.set?
    begin
      jobs = call("fetch", { queues: QUEUES, visibility_timeout_ms: LEASE_MS, wait_ms: WAIT_MS })["jobs"]
      jobs.each { |job| work(job) }
    rescue StandardError => e
      warn e.message
      STOPPING.wait(1)
    end
  end
end

# Keeps the jobs that run, and the worker itself while there is none.
def heartbeats(interval)
  until STOPPED.wait(interval)
    jobs = LOCK.synchronize { RUNNING.dup }
    state = STOPPING.set? ? "drain" : "running"
    begin
      answer = call("heartbeat", { active_jobs: jobs.keys, visibility_timeout_ms: LEASE_MS, state: state })
      (jobs.keys - answer["jobs_extended"]).each { |id| jobs[id].set }
      STOPPING.set if answer["state"] == "terminate"
    rescue StandardError => e
      warn e.message # The next one comes soon.
    end
  end
end

%w[TERM INT].each { |name| trap(name) { STOPPING.set } }
about = { queues: QUEUES, concurrency: SLOTS, hostname: Socket.gethostname, pid: Process.pid }
registered = call("register", about, tries: 60)
puts "serving #{QUEUES.join(',')} as #{WORKER} at #{BASE}"
beats = Thread.new { heartbeats([registered["heartbeat_interval"], LEASE_MS / 2000.0].min) }
Array.new(SLOTS) { Thread.new { slot } }.each(&:join)
STOPPED.set
beats.join
call("deregister", {}, tries: 3)
