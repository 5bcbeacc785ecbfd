fn main() {
    println!("sunny");
}
