//go:build unix

package discovery

import "syscall"

// nonblock makes opening a FIFO return at once, whether or not somebody writes
// to it. On regular files it does nothing.
const nonblock = syscall.O_NONBLOCK
