pub mod fields;
pub mod messages;
pub mod options;
