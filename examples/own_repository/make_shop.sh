# Make a repository with one commit, whose total() leaves out the first price.
set -eu
git init -q shop
cd shop
printf 'def total(prices):\n    return sum(prices[1:])\n' > shop.py
printf 'from shop import total\n\n\ndef test_total():\n    assert total([2, 3]) == 5\n' > test_shop.py
git add .
git -c user.name=you -c user.email=you@example.org commit -qm "Sum prices"
