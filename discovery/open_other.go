//go:build !unix

package discovery

// nonblock is for systems on which opening a file may wait.
const nonblock = 0
