// Package router picks a worker for a prompt.
package router
