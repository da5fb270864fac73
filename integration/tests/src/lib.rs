//! Promises across processes, tested on the service's own binary and real servers: see `tests/it`.
