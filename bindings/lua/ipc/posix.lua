-- Processes, pipes and ports of the system.
local ffi = require 'ffi'
local posix = {}

posix.SECONDS = 300 -- how long servers, trees and their nodes wait for others to come

ffi.cdef [[
int fork(void); int waitpid(int, int *, int); void _exit(int); int getpid(void); int getppid(void);
int socketpair(int, int, int, int *); long read(int, void *, size_t); long send(int, const void *, size_t, int);
int close(int);
int kill(int, int); int socket(int, int, int); int bind(int, const void *, unsigned);
int getsockname(int, void *, unsigned *); int unlink(const char *); char *strerror(int);
struct tutti_lua_pollfd { int fd; short events, revents; };
int poll(struct tutti_lua_pollfd *, unsigned long, int);
]]
local C = ffi.C
posix.C = C

function posix.fail(what) error(('%s: %s'):format(what, ffi.string(C.strerror(ffi.errno()))), 0) end

-- Waits up to ms milliseconds until some of these can be read; returns which: their places in the list.
function posix.ready(fds, ms)
   local p, list = ffi.new('struct tutti_lua_pollfd[?]', #fds), {}
   for i, fd in ipairs(fds) do p[i - 1].fd, p[i - 1].events = fd, 1 end
   if C.poll(p, #fds, ms) <= 0 then return list end
   for i = 1, #fds do
      if p[i - 1].revents ~= 0 then list[#list + 1] = i end
   end
   return list
end

function posix.readable(fd, ms) return #posix.ready({ fd }, ms) > 0 end

function posix.sleep(ms) C.poll(nil, 0, ms) end

-- A port of this host that was free a moment ago.
function posix.free_port()
   local fd = C.socket(2, 1, 0)
   local address, length = ffi.new('uint8_t[16]'), ffi.new('unsigned[1]', 16)
   address[0], address[4], address[7] = 2, 127, 1
   if fd < 0 or C.bind(fd, address, 16) ~= 0 or C.getsockname(fd, address, length) ~= 0 then
      posix.fail('a free port')
   end
   C.close(fd)
   return address[2] * 256 + address[3]
end

return posix
