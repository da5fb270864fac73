//! store-redis
