//! integration-tests
