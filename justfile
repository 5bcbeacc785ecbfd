# What must hold before anything lands.
verify:
    .ci/run

# The tests alone.
test:
    cargo test --workspace

# The fast tests of the state machine.
model:
    cargo test -p model

# Measures this machine: a few seconds a point.
bench:
    cargo run --release -q -p cli -- bench --quick
