-- What an administrator of the database does once (docs/operations.md).
CREATE ROLE notificationservice LOGIN PASSWORD 'notification';
CREATE SCHEMA notification AUTHORIZATION notificationservice;
