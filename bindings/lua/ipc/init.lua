return require 'libipc'
