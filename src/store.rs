//! The only module that speaks SQL: one typed function for each file in `sql/`.
