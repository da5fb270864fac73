-- What an administrator of the database does once (docs/operations.md): the owner of the schema migrates, the other role serves.
CREATE ROLE notificationowner LOGIN PASSWORD 'owner';
CREATE ROLE notificationservice LOGIN PASSWORD 'notification';
CREATE SCHEMA notification AUTHORIZATION notificationowner;
