//! Placeholder.
fn main() {
    engine::supervise_if_asked();
}
