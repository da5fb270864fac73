//! local-servers
